package engineload

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// maxLine bounds a line. Real ones are below 1 KiB; cache_config_info with all its labels is about 2 KiB.
const maxLine = 64 << 10

// label is one name and value.
type label struct{ name, value string }

// labels are a sample's labels, in the order of the text.
type labels []label

// get returns a label's value; an absent label is as good as an empty one.
func (ls labels) get(name string) string {
	for _, l := range ls {
		if l.name == name {
			return l.value
		}
	}
	return ""
}

// key identifies the work that a sample counts: all labels but those of ranks that repeat one another.
func (ls labels) key() string {
	kept := make([]label, 0, len(ls))
	for _, l := range ls {
		if !replicas[l.name] && l.value != "" {
			kept = append(kept, l)
		}
	}
	slices.SortFunc(kept, func(a, b label) int { return strings.Compare(a.name, b.name) })
	var b strings.Builder
	for _, l := range kept {
		b.WriteString(strconv.Quote(l.name))
		b.WriteString(strconv.Quote(l.value))
	}
	return b.String()
}

// sample is one line of a wanted name.
type sample struct {
	labels labels
	value  float64
}

// family is what the text says under one exact name.
type family struct {
	samples []sample
	help    string
	// bad says that a line was malformed, not finite, negative or cut off, so that a sum would be too small.
	bad bool
}

// exposition is the wanted part of a text in Prometheus' format.
type exposition struct {
	families  map[string]*family
	truncated bool
	// cause is the error that ended the text early; nil where only the last line's end is missing.
	cause error
}

// readExposition reads samples of wanted names, up to maxBytes of text. It returns ErrTooLarge, or an error of r other
// than an end that comes too soon, which is no error but marks the result as truncated.
func readExposition(r io.Reader, maxBytes int64) (*exposition, error) {
	x := &exposition{families: map[string]*family{}}
	limited := &io.LimitedReader{R: r, N: maxBytes + 1}
	lines := bufio.NewReaderSize(limited, maxLine)
	last := "" // the name of the last whole sample
	for {
		line, err := lines.ReadSlice('\n')
		if limited.N <= 0 {
			return nil, ErrTooLarge
		}
		switch {
		case err == nil:
			if name := x.line(line); len(name) > 0 && string(name) != last {
				last = string(name)
			}
		case errors.Is(err, bufio.ErrBufferFull):
			x.spoil(string(sampleName(line)))
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
			if err == nil {
				continue
			}
			if limited.N <= 0 {
				return nil, ErrTooLarge
			}
			return x, x.end(nil, last, err)
		default:
			return x, x.end(line, last, err)
		}
	}
}

// end deals with the text's end, regular or not.
func (x *exposition) end(rest []byte, last string, err error) error {
	rest = bytes.TrimSpace(rest)
	switch {
	case err == io.EOF: //nolint:errorlint // the bare end of the text, not one that r wraps
		if len(rest) == 0 || string(rest) == "# EOF" {
			return nil
		}
		err = nil // the last line has no end
	case !cutShort(err):
		return err
	}
	x.truncated, x.cause = true, err
	// A family's samples stand together, so the cut fell into the last one, unless the next had begun. A sum over the
	// samples that came would be too small.
	name := string(sampleName(rest))
	switch {
	case len(rest) > 0 && rest[0] == '#':
	case len(name) < len(rest) && base(name) != base(last):
		x.spoil(name)
	default:
		for w := range wanted {
			if base(w) == base(last) {
				x.spoil(w)
			}
		}
	}
	return nil
}

// base is the name of a family of samples.
func base(name string) string {
	for _, suffix := range []string{"_total", "_sum", "_count", "_bucket", "_created"} {
		if cut, ok := strings.CutSuffix(name, suffix); ok {
			return cut
		}
	}
	return name
}

// spoil marks a wanted name's numbers as unusable.
func (x *exposition) spoil(name string) {
	if _, ok := wanted[name]; ok {
		x.family(name).bad = true
	}
}

func (x *exposition) family(name string) *family {
	f := x.families[name]
	if f == nil {
		f = &family{}
		x.families[name] = f
	}
	return f
}

// line takes in one line and returns the sample's name, if it is one.
func (x *exposition) line(line []byte) []byte {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return nil
	}
	if line[0] == '#' {
		x.help(line)
		return nil
	}
	name := sampleName(line)
	if _, ok := wanted[string(name)]; !ok {
		return name
	}
	s, ok := parseSample(line[len(name):])
	if !ok {
		x.spoil(string(name))
		return name
	}
	f := x.family(string(name))
	f.samples = append(f.samples, s)
	return name
}

// help keeps the help text of a wanted name. OpenMetrics gives a counter's without the suffix.
func (x *exposition) help(line []byte) {
	rest, ok := bytes.CutPrefix(line, []byte("# HELP "))
	if !ok {
		return
	}
	name, text, _ := bytes.Cut(rest, []byte(" "))
	for _, n := range []string{string(name), string(name) + "_total"} {
		if _, ok := wanted[n]; ok {
			x.family(n).help = string(text)
		}
	}
}

// sampleName is the name at the start of a line; empty where none is.
func sampleName(line []byte) []byte {
	for i, c := range line {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == ':'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return line[:i]
		}
	}
	return line
}

// parseSample reads what follows the name: labels, a value that is finite and not negative, and perhaps a time and an
// exemplar, which are not kept.
func parseSample(rest []byte) (sample, bool) {
	var s sample
	text := strings.TrimLeft(string(rest), " \t")
	if after, ok := strings.CutPrefix(text, "{"); ok {
		if s.labels, text, ok = parseLabels(after); !ok {
			return sample{}, false
		}
	} else if len(rest) > 0 && rest[0] != ' ' && rest[0] != '\t' {
		return sample{}, false
	}
	text, _, _ = strings.Cut(text, "#")
	fields := strings.Fields(text)
	if len(fields) < 1 || len(fields) > 2 || strings.ContainsAny(fields[0], "pPxX_") {
		return sample{}, false
	}
	if len(fields) == 2 {
		if _, err := strconv.ParseFloat(fields[1], 64); err != nil {
			return sample{}, false
		}
	}
	v, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return sample{}, false
	}
	s.value = v
	return s, true
}

// parseLabels reads labels up to the closing brace and returns what follows it.
func parseLabels(text string) (labels, string, bool) {
	var ls labels
	for {
		text = strings.TrimLeft(text, " \t")
		if after, ok := strings.CutPrefix(text, "}"); ok {
			return ls, after, true
		}
		name := string(sampleName([]byte(text)))
		text = strings.TrimLeft(text[len(name):], " \t")
		after, ok := strings.CutPrefix(text, "=")
		if !ok || name == "" {
			return nil, "", false
		}
		after = strings.TrimLeft(after, " \t")
		value, rest, ok := parseQuoted(after)
		if !ok {
			return nil, "", false
		}
		ls = append(ls, label{name, value})
		rest = strings.TrimLeft(rest, " \t")
		if comma, ok := strings.CutPrefix(rest, ","); ok {
			rest = comma
		} else if !strings.HasPrefix(rest, "}") {
			return nil, "", false
		}
		text = rest
	}
}

// parseQuoted reads a label's value with its three escapes and returns what follows the closing quote.
func parseQuoted(text string) (value, rest string, ok bool) {
	text, ok = strings.CutPrefix(text, `"`)
	if !ok {
		return "", "", false
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			return b.String(), text[i+1:], true
		case '\\':
			i++
			if i == len(text) {
				return "", "", false
			}
			switch text[i] {
			case 'n':
				b.WriteByte('\n')
			case '\\', '"':
				b.WriteByte(text[i])
			default:
				return "", "", false
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}
