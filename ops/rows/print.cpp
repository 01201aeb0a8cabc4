// Tensors as text, in the format of PyTorch's Python repr.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "core/context.h"
#include "ops/vocabulary/convert.h"

namespace brrr {

namespace {

// PyTorch's default print options; the precision is in the format strings.
constexpr int64_t kEdge = 3, kThreshold = 1000, kLineWidth = 80;
constexpr int64_t kIndent = 7;  // "tensor("

// Formats a tensor's elements in columns of one width, determined by the elements shown.
class Columns {
 public:
  explicit Columns(const TensorImpl& t) : t_(t), short_(t.numel > kThreshold) {
    double low = HUGE_VAL, high = 0;
    each_measured([&](int64_t, double x) {
      low = std::min(low, x);
      high = std::max(high, x);
      whole_ &= x == std::ceil(x);
    });
    if (high > 0) exponent_ = high / low > 1000 || high > 1e8 || low < 1e-4;
    each_measured([&](int64_t at, double) { width_ = std::max(width_, plain(at).size()); });
  }
  std::string text() const { return text(0, 0, kIndent); }

 private:
  const TensorImpl& t_;
  const bool short_;   // Only the first and last of each dim are shown.
  bool whole_ = true;  // All finite values are integers.
  bool exponent_ = false;
  size_t width_ = 1;

  bool cut(int d) const { return short_ && t_.sizes[d] > 2 * kEdge; }

  template <class T> T value(int64_t at) const {
    T v;
    const char* p = t_.data() + at * static_cast<int64_t>(itemsize(t_.dtype));
    load_tile(DTypeOf<T>::value, &v, t_.dtype, p, 1, 1);
    return v;
  }

  // Calls f(offset) for each entry of dim `d` that is shown, g() where some are left out.
  template <class F, class G> void each(int d, int64_t at, const F& f, const G& g) const {
    for (int64_t i = 0; i < t_.sizes[d]; ++i) {
      if (cut(d) && i == kEdge) {
        g();
        i = t_.sizes[d] - kEdge;
      }
      f(at + i * t_.strides[d]);
    }
  }
  template <class F> void each_element(int d, int64_t at, const F& f) const {
    if (d == t_.ndim) return f(at);
    const auto further = [&](int64_t next) { each_element(d + 1, next, f); };
    each(d, at, further, [] {});
  }

  // Calls f(offset, magnitude) for the elements shown that determine the width: all but zeros,
  // infinities and NaNs of floats ("inf" and "nan" may be wider than the column).
  template <class F> void each_measured(const F& f) const {
    each_element(0, 0, [&](int64_t at) {
      const double x = is_floating(t_.dtype) ? std::fabs(value<double>(at)) : 1;
      if (x != 0 && std::isfinite(x)) f(at, x);
    });
  }

  std::string plain(int64_t at) const {
    if (t_.dtype == kBool) return value<int64_t>(at) ? "True" : "False";
    if (!is_floating(t_.dtype)) return std::to_string(value<int64_t>(at));
    const double x = value<double>(at);
    if (std::isnan(x)) return "nan";
    if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
    return exponent_ ? fmt::format("{:.4e}", x)
           : whole_  ? fmt::format("{:.0f}.", x)
                     : fmt::format("{:.4f}", x);
  }

  std::string padded(int64_t at) const { return fmt::format("{:>{}}", plain(at), width_); }

  // Dims from `d` on: the last dim in as many columns as fit a line, others as stacked blocks.
  std::string text(int d, int64_t at, int64_t indent) const {
    if (t_.ndim == 0) return padded(at);
    const int deeper = t_.ndim - 1 - d;
    const int64_t columns = (kLineWidth - indent) / (static_cast<int64_t>(width_) + 2);
    const int64_t per_line = deeper ? 1 : std::max<int64_t>(1, columns);
    const std::string below = "," + std::string(static_cast<size_t>(std::max(deeper, 1)), '\n') +
                              std::string(static_cast<size_t>(indent) + 1, ' ');
    std::string out;
    int64_t n = 0;
    const auto add = [&](const std::string& s) {
      if (n > 0) out += n % per_line == 0 ? below : ", ";
      out += s;
      ++n;
    };
    each(
        d, at, [&](int64_t i) { add(deeper ? text(d + 1, i, indent + 1) : padded(i)); },
        [&] { add(deeper ? "..." : " ..."); });
    return "[" + out + "]";
  }
};

std::string tuple(const IntList& v) {
  return fmt::format("({}{})", fmt::join(v, ", "), v.size() == 1 ? "," : "");
}

std::vector<std::string> suffixes(const TensorImpl& t) {
  std::vector<std::string> all;
  if (t.device.type != DeviceType::CPU) all.push_back("device='" + name(t.device) + "'");
  if (t.numel == 0 && t.ndim != 1) all.push_back("size=" + tuple(t.size_list()));
  // The elements of an int64 or bool tensor show its dtype; an empty one has none.
  if (t.dtype != kFloat32 && (t.numel == 0 || (t.dtype != kInt64 && t.dtype != kBool))) {
    all.push_back(std::string("dtype=") + name(t.dtype));
  }
  if (t.grad_fn) {
    all.push_back(std::string("grad_fn=<") + t.grad_fn->op->name + ">");
  } else if (t.requires_grad()) {
    all.push_back("requires_grad=True");
  }
  return all;
}

}  // namespace

std::string Tensor::to_string() const {
  if (!defined()) return "tensor(undefined)";
  const TensorImpl& t = *impl();
  check_host_access("to_string", &t);
  const Tensor host = t.device.type == DeviceType::CPU ? *this : detach().to(kCPU);
  std::string out = "tensor(" + (t.numel ? Columns(*host.impl()).text() : std::string("[]"));
  // PyTorch counts two columns more than the last line has; npos acts as -1 here.
  size_t line = out.size() - out.rfind('\n') + 1;
  for (const std::string& s : suffixes(t)) {
    if (line + s.size() + 2 > kLineWidth) {
      out += ",\n" + std::string(kIndent, ' ') + s;
      line = kIndent + s.size();
    } else {
      out += ", " + s;
      line += s.size() + 2;
    }
  }
  return out + ")";
}

std::ostream& operator<<(std::ostream& os, const Tensor& t) { return os << t.to_string(); }

}  // namespace brrr
