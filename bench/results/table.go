package results

import (
	"encoding/csv"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Column is the head of a table's column.
type Column struct {
	Name string
	// Unit is that of the column's numbers. Empty: they are written as plain numbers.
	Unit string
	// Left sets the column to the left, as names are; the default is to the right, as numbers are.
	Left bool
}

// Table is rows under named columns, written as text, Markdown or CSV. The zero value with Columns set is ready for Row.
type Table struct {
	Title   string // above the text; empty for none
	Columns []Column
	Notes   []string // one a line below the text
	rows    [][]any
}

// Row adds a row. A float64 is a number in the column's unit, an [Estimate] one with its interval; strings and everything
// else are written as fmt writes them. Missing cells are empty, those beyond the last column are dropped.
func (t *Table) Row(cells ...any) {
	row := make([]any, len(t.Columns))
	copy(row, cells)
	t.rows = append(t.rows, row)
}

// Len returns the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Cells returns the rows as text, as many cells in each as there are columns. The caller owns them.
func (t *Table) Cells() [][]string {
	out := make([][]string, len(t.rows))
	for i, row := range t.rows {
		out[i] = make([]string, len(row))
		for j, c := range row {
			out[i][j] = t.cell(c, t.Columns[j].Unit)
		}
	}
	return out
}

func (t *Table) cell(c any, unit string) string {
	switch v := c.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return Format(v, unit)
	case Estimate:
		s := Format(v.Value, unit)
		if v.Level > 0 && finite(v.Low) && finite(v.High) {
			s += " [" + Format(v.Low, unit) + ", " + Format(v.High, unit) + "]"
		}
		return s
	}
	return fmt.Sprint(c)
}

// Write writes the table as aligned text: title, heads, a rule, rows, notes. Line breaks and tabs inside cells become spaces.
func (t *Table) Write(w io.Writer) error {
	cells := t.Cells()
	widths := make([]int, len(t.Columns))
	heads := make([]string, len(t.Columns))
	for j, c := range t.Columns {
		heads[j] = c.Name
		widths[j] = width(oneLine(c.Name))
	}
	for _, row := range cells {
		for j, c := range row {
			widths[j] = max(widths[j], width(oneLine(c)))
		}
	}
	var b strings.Builder
	if t.Title != "" {
		b.WriteString(t.Title + "\n")
	}
	t.line(&b, widths, heads)
	rule := make([]string, len(widths))
	for j, n := range widths {
		rule[j] = strings.Repeat("-", n)
	}
	t.line(&b, widths, rule)
	for _, row := range cells {
		t.line(&b, widths, row)
	}
	for _, n := range t.Notes {
		b.WriteString(oneLine(n) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (t *Table) line(b *strings.Builder, widths []int, cells []string) {
	var line strings.Builder
	for j, c := range cells {
		c = oneLine(c)
		pad := strings.Repeat(" ", widths[j]-width(c))
		if j > 0 {
			line.WriteString("  ")
		}
		if t.Columns[j].Left {
			line.WriteString(c + pad)
		} else {
			line.WriteString(pad + c)
		}
	}
	b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
}

func width(s string) int { return utf8.RuneCountInString(s) }

func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, s)
}

// Markdown writes the table as a Markdown table, the notes as a list.
func (t *Table) Markdown(w io.Writer) error {
	var b strings.Builder
	if t.Title != "" {
		b.WriteString("**" + t.Title + "**\n\n")
	}
	esc := strings.NewReplacer("|", `\|`, "\n", " ", "\r", " ")
	row := func(cells []string) {
		for _, c := range cells {
			b.WriteString("| " + esc.Replace(c) + " ")
		}
		b.WriteString("|\n")
	}
	heads, rule := make([]string, len(t.Columns)), make([]string, len(t.Columns))
	for j, c := range t.Columns {
		heads[j], rule[j] = c.Name, "--:"
		if c.Left {
			rule[j] = "---"
		}
	}
	row(heads)
	row(rule)
	for _, r := range t.Cells() {
		row(r)
	}
	for i, n := range t.Notes {
		if i == 0 {
			b.WriteByte('\n')
		}
		b.WriteString("- " + oneLine(n) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// CSV writes the table as RFC 4180 text with a line of names, each with its unit in parentheses. Numbers are whole, in the
// column's unit without prefixes; an Estimate is its value alone. Title and notes are left out.
func (t *Table) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	heads := make([]string, len(t.Columns))
	for j, col := range t.Columns {
		heads[j] = col.Name
		if col.Unit != "" && col.Unit != "1" {
			heads[j] += " (" + col.Unit + ")"
		}
	}
	if err := c.Write(heads); err != nil {
		return err
	}
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for j, v := range row {
			switch v := v.(type) {
			case Estimate:
				cells[j] = fullNumber(v.Value)
			case float64:
				cells[j] = fullNumber(v)
			case nil:
			default:
				cells[j] = fmt.Sprint(v)
			}
		}
		if err := c.Write(cells); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

// fullNumber writes all digits, and nothing for what is no number.
func fullNumber(v float64) string {
	if !finite(v) {
		return ""
	}
	return fmt.Sprint(v)
}
