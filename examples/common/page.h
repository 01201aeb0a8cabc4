#pragma once
// A self-contained HTML report: text, pictures and tables, no scripts, no external resources.

#include <string>
#include <vector>

#include "examples/common/chart.h"
#include "tests/bench/measure/output.h"

namespace examples {

/// A table cell: the text to show and the exact value.
struct Datum {
  std::string text;
  brrr::bench::Json value;

  Datum(std::string word) : text(word), value(std::move(word)) {}
  Datum(const char* word) : Datum(std::string(word)) {}
  Datum(int64_t count) : text(std::to_string(count)), value(count) {}
  Datum(double v) : text(brrr::bench::three_figures(v)), value(v) {}
  Datum(std::string t, double v) : text(std::move(t)), value(v) {}
};
Datum percent(double share);  ///< "12 %".
Datum times(double factor);   ///< "1.23x".

/// A table that can be output as text, CSV, HTML and JSON.
struct Sheet {
  std::string name = {};   ///< File name without extension: "roofline".
  std::string title = {};  ///< Heading.
  std::vector<std::string> header = {};
  std::vector<std::vector<Datum>> rows = {};

  std::string text() const;
  std::string csv() const;
  std::string html() const;
  brrr::bench::Json json() const;  ///< An array of objects.
};

class Page {
 public:
  Page(std::string title, std::string subtitle);

  /// A paragraph in large type.
  void lead(const std::string& text) { element("p", "lead", text); }
  void heading(const std::string& text);
  void paragraph(const std::string& text) { element("p", "", text); }
  void note(const std::string& text) { element("p", "note", text); }
  /// Side by side if the page is wide enough.
  void pictures(const std::vector<Picture>& all);
  /// Collapsed initially.
  void table(const Sheet& sheet);

  std::string html() const;

 private:
  void element(const char* name, const char* look, const std::string& text);

  std::string title_, subtitle_, body_;
  std::vector<std::string> headings_;
};

}  // namespace examples
