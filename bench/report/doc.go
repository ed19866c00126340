// Package report makes one self-contained HTML file of benchmark results: what to conclude for the link, plots, tables, the
// machine, and the commands to do it again.
//
// # Usage
//
//	f, err := results.Load("crossover.json")
//	r, err := report.Build([]report.Input{{Name: "crossover.json", File: f}})
//	err = r.WriteHTML(w)
//
// # The file
//
// It has no scripts and asks for nothing: styles and plots are inside, and a content security policy holds it to that. It is
// laid out from 360 pixels on, light and dark as the reader's system is, and readable without seeing: headings are
// nested, each plot says in words what it shows, wide tables scroll by keyboard. The same results give the same bytes.
//
// Sentences are made from the numbers. Where the machine and not the link set a number, they say so and conclude nothing
// from it.
//
// # Concurrency
//
// Build only reads its results. A Report is a value that may be written by several goroutines at a time.
//
// # Limitations
//
// Results of goodput, crossover, queue and hybrid have sections of their own; other kinds show their metrics. Results are not compared:
// that is results.Diff.
package report
