#include "models/data.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/backend.h"
#include "core/check.h"
#include "core/context.h"
#include "models/counter_rng.h"

namespace brrr::data {

namespace {

constexpr int kSide = 28, kPixels = kSide * kSide;

struct Point {
  double x, y;
};

// The polyline of each digit as x, y pairs, in a unit square with y pointing down.
const std::vector<double> kStrokes[10] = {
    {.5, .05, .75, .18, .85, .5, .75, .82, .5, .95, .25, .82, .15, .5, .25, .18, .5, .05},
    {.3, .25, .55, .05, .55, .5, .55, .95},
    {.2, .25, .35, .08, .6, .05, .8, .22, .75, .42, .5, .65, .2, .95, .85, .95},
    {.2, .12, .5, .05, .78, .2, .72, .4, .45, .48, .75, .58, .82, .78, .55, .95, .18, .86},
    {.65, .95, .65, .5, .65, .05, .4, .35, .15, .65, .9, .65},
    {.8, .05, .28, .05, .22, .45, .55, .4, .82, .6, .75, .85, .45, .95, .18, .85},
    {.72, .08, .4, .25, .2, .6, .3, .9, .6, .95, .82, .75, .65, .52, .4, .52, .22, .7},
    {.15, .05, .5, .05, .85, .05, .65, .5, .45, .95},
    {.5,  .48, .25, .3,  .35, .08, .65, .08, .75, .3, .5,
     .48, .2,  .72, .35, .95, .65, .95, .8,  .72, .5, .48},
    {.78, .35, .6, .5, .35, .48, .2, .28, .4, .06, .68, .1, .8, .35, .7, .7, .5, .95},
};

// Draws a line from a to b with a soft edge one pixel wide; overlapping lines take the maximum.
void draw_line(float* image, Point a, Point b, double radius) {
  const double margin = radius + 1;
  const auto low = [&](double v) { return std::max(0, static_cast<int>(std::floor(v - margin))); };
  const auto high = [&](double v) {
    return std::min(kSide - 1, static_cast<int>(std::ceil(v + margin)));
  };
  const double dx = b.x - a.x, dy = b.y - a.y, length = std::max(dx * dx + dy * dy, 1e-9);
  for (int y = low(std::min(a.y, b.y)); y <= high(std::max(a.y, b.y)); ++y) {
    for (int x = low(std::min(a.x, b.x)); x <= high(std::max(a.x, b.x)); ++x) {
      const double t = std::clamp(((x - a.x) * dx + (y - a.y) * dy) / length, 0.0, 1.0);
      const double distance = std::hypot(x - a.x - t * dx, y - a.y - t * dy);
      const double ink = std::clamp(radius + 0.5 - distance, 0.0, 1.0);
      float& pixel = image[y * kSide + x];
      pixel = std::max(pixel, static_cast<float>(ink));
    }
  }
}

void draw_digit(float* image, int64_t digit, CounterRng& rng) {
  const double angle = rng.uniform(-0.2, 0.2), slant = rng.uniform(-0.2, 0.2);
  const double width = rng.uniform(12, 18), height = rng.uniform(16, 20);
  const double shift_x = rng.uniform(-1.6, 1.6), shift_y = rng.uniform(-1.6, 1.6);
  const double radius = rng.uniform(0.5, 1.4), cosine = std::cos(angle), sine = std::sin(angle);
  const auto place = [&](Point p) -> Point {
    const double v = (p.y - 0.5 + 0.03 * rng.normal()) * height;
    const double u = (p.x - 0.5 + 0.03 * rng.normal()) * width - slant * v;
    return {13.5 + shift_x + cosine * u - sine * v, 13.5 + shift_y + sine * u + cosine * v};
  };
  const std::vector<double>& stroke = kStrokes[digit];
  Point from = place({stroke[0], stroke[1]});
  for (size_t i = 2; i < stroke.size(); i += 2) {
    const Point to = place({stroke[i], stroke[i + 1]});
    draw_line(image, from, to, radius);
    from = to;
  }
}

void add_noise(float* image, CounterRng& rng) {
  // A short stray stroke, so that no single pixel identifies a digit.
  const Point a{rng.uniform(0, kSide), rng.uniform(0, kSide)};
  draw_line(image, a, {a.x + 3 * rng.normal(), a.y + 3 * rng.normal()}, 0.6);
  const double contrast = rng.uniform(0.5, 1.0);
  for (int i = 0; i < kPixels; ++i) {
    // The difference of two uniforms from one draw, triangular: a cheap substitute for a normal.
    const uint64_t bits = rng.next();
    const double noise = static_cast<double>(bits >> 32) * 0x1p-32 -
                         static_cast<double>(bits & 0xffffffff) * 0x1p-32;
    image[i] = static_cast<float>(std::clamp(image[i] * contrast + 0.3 * noise, 0.0, 1.0));
  }
}

}  // namespace

Dataset digits(int64_t n, uint64_t seed) {
  check_host_access("digits", nullptr);
  BRRR_CHECK(n > 0, "digits: n must be positive, got {}", n);
  Dataset set{raw_empty({n, kPixels}, kFloat32, kCPU), raw_empty({n}, kInt64, kCPU), 10};
  auto* images = static_cast<float*>(set.images.data_ptr());
  auto* labels = static_cast<int64_t*>(set.labels.data_ptr());
  parallel_for(n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      CounterRng rng(seed, static_cast<uint64_t>(i));
      float* image = images + i * kPixels;
      std::fill_n(image, kPixels, 0.0f);
      labels[i] = static_cast<int64_t>(rng.below(10));
      draw_digit(image, labels[i], rng);
      add_noise(image, rng);
    }
  });
  return set;
}

}  // namespace brrr::data
