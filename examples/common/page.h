#pragma once
// A report that is one HTML file: text, pictures and tables; no scripts, nothing from elsewhere.

#include <string>
#include <vector>

#include "examples/common/chart.h"
#include "tests/bench/measure/output.h"

namespace examples {

/// A figure in a table: as people read it, and as it is.
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

/// A table that can be shown everywhere.
struct Sheet {
  std::string name = {};   ///< Of its file: "roofline".
  std::string title = {};  ///< For people.
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

  /// What the page is about, in large type.
  void lead(const std::string& text) { element("p", "lead", text); }
  void heading(const std::string& text);
  void paragraph(const std::string& text) { element("p", "", text); }
  void note(const std::string& text) { element("p", "note", text); }
  /// Side by side where there is room.
  void pictures(const std::vector<Picture>& all);
  /// Closed at first.
  void table(const Sheet& sheet);

  std::string html() const;

 private:
  void element(const char* name, const char* look, const std::string& text);

  std::string title_, subtitle_, body_;
  std::vector<std::string> headings_;
};

}  // namespace examples
