#include "examples/common/page.h"

#include <fmt/format.h>

namespace examples {

// Added to picture_style(), whose colours it uses.
constexpr const char* kStyle = R"css(
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 0.5rem; padding-top: 0.75rem;
  border-top: 1px solid var(--rule); }
p { max-width: 46rem; margin: 0.5rem 0; }
.lead { font-size: 1.15rem; line-height: 1.45; margin: 0.9rem 0; padding-left: 0.9rem;
  border-left: 4px solid var(--c1); }
.note, .sub { color: var(--dim); font-size: 0.875rem; }
nav ol { padding-left: 1.4rem; columns: 15rem; font-size: 0.95rem; }
a { color: inherit; }
.figures { display: grid; gap: 1rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; min-width: 0; }
figure > svg { display: block; width: 100%; height: auto; }
details { margin: 0.5rem 0; font-size: 0.9rem; }
summary { cursor: pointer; color: var(--dim); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.5rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
th { font-weight: 600; }
td:first-child, th:first-child { text-align: left; }
td.word { text-align: left; }
@media print {
  :root { font-size: 10pt; }
  nav { display: none; }
  .figures { grid-template-columns: 1fr 1fr; }
  figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  .scroll { overflow: visible; }
  td, th { white-space: normal; padding: 0.1rem 0.3rem; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
)css";

// Quoted as in RFC 4180.
static std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string t = "\"";
  for (char c : text) t += c == '"' ? "\"\"" : std::string(1, c);
  return t + "\"";
}

Datum percent(double share) { return {fmt::format("{:.0f} %", 100 * share), share}; }
Datum times(double factor) { return {fmt::format("{:.2f}x", factor), factor}; }

// With right-aligned columns.
std::string Sheet::text() const {
  std::vector<size_t> width;
  for (const std::string& h : header) width.push_back(h.size());
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].text.size());
  }
  const auto line = [&](const auto& cell) {
    std::string t;
    for (size_t c = 0; c < width.size(); ++c) t += fmt::format("  {:>{}}", cell(c), width[c]);
    return t + '\n';
  };
  std::string t = line([&](size_t c) { return header[c]; });
  t += line([&](size_t c) { return std::string(width[c], '-'); });
  for (const auto& row : rows) t += line([&](size_t c) { return row[c].text; });
  return t;
}

std::string Sheet::csv() const {
  std::string t;
  for (const std::string& h : header) t += csv_field(h) + ',';
  for (const auto& row : rows) {
    t.back() = '\n';  // Replaces the last comma.
    for (const Datum& d : row) {
      t += csv_field(d.value.is_string() ? d.value.get<std::string>() : d.value.dump()) + ',';
    }
  }
  t.back() = '\n';
  return t;
}

std::string Sheet::html() const {
  std::string t = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& h : header) t += fmt::format("<th scope=\"col\">{}</th>", html_escape(h));
  t += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    t += "<tr>";
    for (const Datum& d : row) {
      t += fmt::format("<td{}>{}</td>", d.value.is_string() ? " class=\"word\"" : "",
                       html_escape(d.text));
    }
    t += "</tr>\n";
  }
  return t + "</tbody></table></div>\n";
}

brrr::bench::Json Sheet::json() const {
  auto all = brrr::bench::Json::array();
  for (const auto& row : rows) {
    auto& object = all.emplace_back(brrr::bench::Json::object());
    for (size_t c = 0; c < row.size(); ++c) object[header[c]] = row[c].value;
  }
  return all;
}

Page::Page(std::string title, std::string subtitle)
    : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

void Page::element(const char* name, const char* look, const std::string& text) {
  const std::string attribute = *look ? fmt::format(" class=\"{}\"", look) : "";
  body_ += fmt::format("<{0}{1}>{2}</{0}>\n", name, attribute, html_escape(text));
}

void Page::heading(const std::string& text) {
  headings_.push_back(text);
  body_ += fmt::format("<h2 id=\"s{}\">{}</h2>\n", headings_.size(), html_escape(text));
}

void Page::pictures(const std::vector<Picture>& all) {
  if (all.empty()) return;
  body_ += "<div class=\"figures\">\n";
  for (const Picture& p : all) body_ += "<figure>" + p.svg() + "</figure>\n";
  body_ += "</div>\n";
}

void Page::table(const Sheet& sheet) {
  body_ += fmt::format("<details><summary>Table: {}</summary>\n{}</details>\n",
                       html_escape(sheet.title), sheet.html());
}

std::string Page::html() const {
  std::string nav;
  for (size_t i = 0; i < headings_.size(); ++i) {
    nav += fmt::format("<li><a href=\"#s{}\">{}</a></li>\n", i + 1, html_escape(headings_[i]));
  }
  // The table of contents goes between the lead and the first section.
  const size_t first = std::min(body_.find("<h2 "), body_.size());
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title>\n<style>{1}{2}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n"
      "<p class=\"sub\">{3}</p>\n{4}<nav><ol>\n{5}</ol></nav>\n{6}</main>\n</body>\n</html>\n",
      html_escape(title_), picture_style(), kStyle, html_escape(subtitle_), body_.substr(0, first),
      nav, body_.substr(first));
}

}  // namespace examples
