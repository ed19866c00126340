// Package results is the one schema of benchmark results, with what belongs to
// it: statistics that say how sure a number is, comparison of two results,
// one table renderer, one plot style, progress lines.
//
// # Usage
//
// A benchmark makes a [File], gives it its own body and the metrics that
// comparisons look at, and saves it:
//
//	f := results.New(results.KindGoodput, os.Args, params)
//	f.Add(results.Metric{Name: "goodput", Unit: "bps", Better: results.Higher, Samples: samples})
//	if err := f.SetBody(body); err != nil { ... }
//	f.Finish(ctx.Err() != nil)
//	err := f.Save("goodput.json")
//
// Later, on the same machine with the same parameters:
//
//	old, err := results.Load("goodput.json")
//	c, err := results.Diff(old, f) // *UnlikeError when the two cannot be compared
//	err = c.Table(os.Stdout)
//
// # File format
//
// A result is one JSON object of at most [MaxFileBytes], in one of two forms
// that [Load] and [Parse] both read. The nested form, which [File.Save] writes,
// has the fields of File, the benchmark's own under "body". The flat form,
// which [File.WriteFlat] writes for people and scripts, has the fields of the
// body at the top and all else under "run":
//
//	{"schema":"kvferry.bench/1","kind":"goodput",...,"body":{"goodput_bps":4.1e8}}
//	{"goodput_bps":4.1e8,"run":{"schema":"kvferry.bench/1","kind":"goodput",...}}
//
// Unknown schemas, kinds and fields are refused, so are fields given twice and
// text after the object. The body is the kind's own: [File.DecodeBody] is as
// strict about it.
//
// # Units
//
// Units are text, and those that [Format] knows are written with a prefix:
// "bps" (bits a second), "B" (bytes; powers of 1024), "s" (seconds), "Hz".
// "1" is a plain number (a ratio, a share) and "%" a hundredth of it. Any other
// unit ("tokens", "s/GB") follows its number as it is.
//
// # Concurrency
//
// A File and a [Table] are for one goroutine at a time. A [Progress] is safe for concurrent
// use. Everything else is a value or a pure function, safe for concurrent use
// as long as its arguments are not changed meanwhile.
//
// # Limitations
//
// Diff compares metrics, never bodies. It corrects nothing for the number of
// metrics compared: among twenty that did not change one may, by chance, look
// as if it had, which the demand that the intervals be disjoint makes rare.
// Samples are taken to be independent: for a correlated series use
// [BatchMeans]. Plots are for a handful of series.
package results
