#include "examples/common/page.h"

#include <fmt/format.h>

namespace examples {

namespace {

// The colours are Okabe and Ito's, which colour-blind people can tell apart; a dark page takes the
// lighter ones.
constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --bg: #fff; --fg: #1b1d21; --dim: #555b66; --rule: #d9dce1;
  --box: #f4f5f7; --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #e69f00;
  --c5: #56b4e9; }
@media screen and (prefers-color-scheme: dark) {
  :root { --bg: #15171a; --fg: #e6e7e9; --dim: #a3a9b3; --rule: #383c43; --box: #1e2125;
    --c0: #56b4e9; --c1: #e8702a; --c2: #1bb98b; --c5: #f0e442; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 0.5rem; padding-top: 0.75rem;
  border-top: 1px solid var(--rule); }
p { max-width: 46rem; margin: 0.5rem 0; }
.lead { font-size: 1.15rem; line-height: 1.45; margin: 0.9rem 0; padding-left: 0.9rem;
  border-left: 4px solid var(--c0); }
.note, .sub { color: var(--dim); font-size: 0.875rem; }
nav ol { padding-left: 1.4rem; columns: 15rem; font-size: 0.95rem; }
a { color: var(--c0); }
.figures { display: grid; gap: 1rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; font-size: 0.95rem; margin-bottom: 0.35rem; }
figure > svg { display: block; width: 100%; height: auto; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0.1rem 1rem; margin: 0.3rem 0 0;
  padding: 0; font-size: 0.85rem; }
.sample { width: 30px; height: 12px; margin-right: 0.4rem; }
svg text { font: 12px system-ui, sans-serif; fill: var(--fg); }
svg .mid { text-anchor: middle; }
svg .end { text-anchor: end; }
svg .dim { fill: var(--dim); }
svg .halo { paint-order: stroke; stroke: var(--bg); stroke-width: 4px; }
.grid { stroke: var(--rule); }
.axis { stroke: var(--dim); }
.mark { stroke: var(--fg); stroke-dasharray: 3 3; }
.line { fill: none; stroke: var(--c); stroke-width: 2; }
.c1 .line { stroke-dasharray: 7 3; }
.c2 .line { stroke-dasharray: 2 3; }
.c3 .line { stroke-dasharray: 9 3 2 3; }
.limit .line { stroke: var(--dim); stroke-width: 1.5; stroke-dasharray: 5 4; }
.c3.limit .line { stroke-dasharray: 1.5 3; }
.marks, .bar { fill: var(--c); }
.hatch { stroke: var(--bg); stroke-width: 1.4; fill: var(--bg); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); }
.c3 { --c: var(--c3); } .c4 { --c: var(--c4); } .c5 { --c: var(--c5); }
details { margin: 0.5rem 0; font-size: 0.9rem; }
summary { cursor: pointer; color: var(--dim); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.5rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
th { background: var(--box); font-weight: 600; }
td:first-child, th:first-child { text-align: left; }
td.word { text-align: left; }
@media print {
  body { font-size: 10pt; }
  nav { display: none; }
  figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  .scroll { overflow: visible; }
  td, th { white-space: normal; padding: 0.1rem 0.3rem; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
)css";

// Patterns over the parts of bars, for those who cannot tell the colours apart.
constexpr const char* kPatterns =
    R"(<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>
<pattern id="h1" width="6" height="6" patternUnits="userSpaceOnUse">
<path d="M0 6L6 0M-1 1L1 -1M5 7L7 5" class="hatch"/></pattern>
<pattern id="h2" width="5" height="5" patternUnits="userSpaceOnUse">
<circle cx="2.5" cy="2.5" r="0.6" class="hatch"/></pattern>
<pattern id="h3" width="6" height="6" patternUnits="userSpaceOnUse">
<path d="M0 0L6 6M-1 5L1 7M5 -1L7 1" class="hatch"/></pattern>
<pattern id="h4" width="4" height="4" patternUnits="userSpaceOnUse">
<path d="M2 0V4" class="hatch"/></pattern>
<pattern id="h5" width="4" height="4" patternUnits="userSpaceOnUse">
<path d="M0 2H4" class="hatch"/></pattern>
</defs></svg>
)";

// As RFC 4180 has it.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string t = "\"";
  for (char c : text) t += c == '"' ? "\"\"" : std::string(1, c);
  return t + "\"";
}

}  // namespace

Datum percent(double share) { return {fmt::format("{:.0f} %", 100 * share), share}; }
Datum times(double factor) { return {fmt::format("{:.2f}x", factor), factor}; }

std::string Sheet::text() const {
  brrr::bench::Table table(header);
  for (const auto& row : rows) {
    std::vector<std::string> cells;
    for (const Datum& d : row) cells.push_back(d.text);
    table.row(cells);
  }
  return table.text();
}

std::string Sheet::csv() const {
  std::string t;
  for (size_t c = 0; c < header.size(); ++c) t += (c ? "," : "") + csv_field(header[c]);
  t += '\n';
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const auto& v = row[c].value;
      t += (c ? "," : "") + csv_field(v.is_string() ? v.get<std::string>() : v.dump());
    }
    t += '\n';
  }
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
  end_figures();
  const std::string attribute = *look ? fmt::format(" class=\"{}\"", look) : "";
  body_ += fmt::format("<{0}{1}>{2}</{0}>\n", name, attribute, html_escape(text));
}

void Page::heading(const std::string& text) {
  end_figures();
  headings_.push_back(text);
  body_ += fmt::format("<h2 id=\"s{}\">{}</h2>\n", headings_.size(), html_escape(text));
}

void Page::add_figure(const std::string& html) {
  if (!in_figures_) body_ += "<div class=\"figures\">\n";
  in_figures_ = true;
  body_ += html;
}

void Page::end_figures() {
  if (in_figures_) body_ += "</div>\n";
  in_figures_ = false;
}

void Page::table(const Sheet& sheet) {
  end_figures();
  body_ += fmt::format("<details><summary>Table: {}</summary>\n{}</details>\n",
                       html_escape(sheet.title), sheet.html());
}

std::string Page::html() const {
  std::string nav;
  for (size_t i = 0; i < headings_.size(); ++i) {
    nav += fmt::format("<li><a href=\"#s{}\">{}</a></li>\n", i + 1, html_escape(headings_[i]));
  }
  // The contents stand between the leading words and the first section.
  const size_t first = std::min(body_.find("<h2 "), body_.size());
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n{2}<main>\n<h1>{0}</h1>\n"
      "<p class=\"sub\">{3}</p>\n{4}<nav><ol>\n{5}</ol></nav>\n{6}{7}</main>\n</body>\n</html>\n",
      html_escape(title_), kStyle, kPatterns, html_escape(subtitle_), body_.substr(0, first), nav,
      body_.substr(first), in_figures_ ? "</div>\n" : "");
}

}  // namespace examples
