package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// outputFlag is -o.
type outputFlag int

const (
	outputTable outputFlag = iota
	outputJSON
)

// String is the flag's value.
func (o outputFlag) String() string {
	if o == outputJSON {
		return "json"
	}
	return "table"
}

// Set parses the flag's value.
func (o *outputFlag) Set(s string) error {
	switch s {
	case "table":
		*o = outputTable
	case "json":
		*o = outputJSON
	default:
		return fmt.Errorf("want table or json")
	}
	return nil
}

// Type names the flag's values in the help.
func (o outputFlag) Type() string { return "format" }

// print writes v as JSON, or what table writes.
func (a *app) print(v any, table func(w io.Writer)) error {
	if a.output == outputJSON {
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// printFault writes an error to stderr.
func (a *app) printFault(f *fault) {
	if a.output == outputJSON {
		enc := json.NewEncoder(a.stderr)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(map[string]*fault{"error": f}) // nothing is left to tell if stderr is gone
		return
	}
	fmt.Fprintf(a.stderr, "kvferry: %s\n", strings.TrimSpace(f.Message))
	if f.Fix != "" {
		fmt.Fprintf(a.stderr, "fix: %s\n", f.Fix)
	}
}

// row writes one line of a table.
func row(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			_, _ = io.WriteString(w, "\t")
		}
		_, _ = fmt.Fprint(w, c)
	}
	_, _ = io.WriteString(w, "\n")
}

// bytesText is b in binary units.
func bytesText(b int64) string {
	v, units := float64(b), [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for math.Abs(v) >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", b)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

// secondsText is s with a unit that suits a person.
func secondsText(s float64) string {
	switch {
	case s == 0:
		return "0 s"
	case math.Abs(s) < 1e-3:
		return fmt.Sprintf("%.3g us", s*1e6)
	case math.Abs(s) < 1:
		return fmt.Sprintf("%.4g ms", s*1e3)
	case math.Abs(s) < 1000:
		return fmt.Sprintf("%.4g s", s)
	}
	return fmt.Sprintf("%.0f s", s)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func dash(s string) string { return orDefault(s, "-") }
