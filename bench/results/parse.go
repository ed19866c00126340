package results

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"
)

// runField holds, in the flat form, all but the body.
const runField = "run"

// Load reads a result in either form from a regular file of at most [MaxFileBytes]. Its errors name the path and what is
// wrong; those of the file system can be matched with errors.Is.
func Load(path string) (*File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load result: %w", err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("load result: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("load result %s: it is no regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(file, MaxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("load result: %w", err)
	}
	f, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("load result %s: %w", path, err)
	}
	return f, nil
}

// Parse decodes a result in either form. b is not retained. What is accepted, saved and read again is the same result.
func Parse(b []byte) (*File, error) {
	if len(b) > MaxFileBytes {
		return nil, fmt.Errorf("it has more than %d bytes, the most that is allowed", MaxFileBytes)
	}
	if !utf8.Valid(b) { // a body is kept as it is
		return nil, errors.New("it is not UTF-8, as JSON is")
	}
	top, err := fields(b)
	if err != nil {
		return nil, err
	}
	var f File
	switch run, flat := lookup(top, runField); {
	case hasField(top, "schema"):
		err = strict(b, &f)
	case flat:
		if err = strict(run, &f); err == nil && f.Body != nil {
			err = fmt.Errorf("field %q has a body of its own: in this form the body's fields stand beside it", runField)
		}
		if f.Body = join(top, runField); len(top) == 1 {
			f.Body = nil
		}
	default:
		err = fmt.Errorf("it has neither %q nor %q: it is no result of kvferry bench", "schema", runField)
	}
	if err != nil {
		return nil, err
	}
	if bytes.Equal(f.Body, []byte("null")) {
		return nil, errors.New("body is null, want an object")
	}
	if err := f.normalize(); err != nil {
		return nil, err
	}
	if err := f.Validate(); err != nil {
		return nil, err
	}
	return &f, nil
}

// normalize makes a decoded result what New and Save would have made of it: nothing nil, the body without spaces.
func (f *File) normalize() error {
	if len(f.Remote) == 0 {
		f.Remote = nil
	}
	if f.Command == nil {
		f.Command = []string{}
	}
	if f.Warnings == nil {
		f.Warnings = []string{}
	}
	if f.Versions == nil {
		f.Versions = map[string]string{}
	}
	if f.Params == nil {
		f.Params = map[string]any{}
	}
	if f.Metrics == nil {
		f.Metrics = []Metric{}
	}
	for i := range f.Metrics {
		if len(f.Metrics[i].Samples) == 0 {
			f.Metrics[i].Samples = nil
		}
	}
	if f.Body == nil {
		return nil
	}
	// Through the encoder, as encoding a RawMessage does: it compacts, and escapes what HTML would take for its own.
	body, err := json.Marshal(f.Body)
	if err != nil {
		return fmt.Errorf("body: %w", err)
	}
	f.Body = body
	return nil
}

// field is one of a JSON object, in order.
type field struct {
	name  string
	value json.RawMessage
}

// fields splits a JSON object that is all of b. A name that is there twice is an error.
func fields(b []byte) ([]field, error) {
	if !json.Valid(b) {
		var v json.RawMessage
		if err := json.Unmarshal(b, &v); err != nil {
			return nil, fmt.Errorf("decode JSON: %w", err)
		}
	}
	if !isObject(b) {
		return nil, errors.New("it is no JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("decode JSON: %w", err)
	}
	var fs []field
	seen := map[string]bool{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("decode JSON: %w", err)
		}
		s, ok := name.(string)
		if !ok {
			return nil, fmt.Errorf("decode JSON: a field's name is %v", name)
		}
		if seen[s] {
			return nil, fmt.Errorf("field %.60q is there twice", s)
		}
		seen[s] = true
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, fmt.Errorf("decode JSON: %w", err)
		}
		fs = append(fs, field{s, v})
	}
	return fs, nil
}

func lookup(fs []field, name string) (json.RawMessage, bool) {
	for _, f := range fs {
		if f.name == name {
			return f.value, true
		}
	}
	return nil, false
}

func hasField(fs []field, name string) bool {
	_, ok := lookup(fs, name)
	return ok
}

// join makes an object of fields, all but one.
func join(fs []field, but string) json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for _, f := range fs {
		if f.name == but {
			continue
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(f.name)
		if err != nil {
			panic("BUG: a string does not encode: " + err.Error())
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(f.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// strict decodes an object into a result: no unknown fields, none twice, names exactly as they are written by Save.
func strict(b []byte, f *File) error {
	if !isObject(b) {
		return fmt.Errorf("field %q is no object", runField)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	d.UseNumber()
	if err := d.Decode(f); err != nil {
		return fmt.Errorf("decode JSON: %w", err)
	}
	top, err := fields(b)
	if err != nil {
		return err
	}
	if err := exactNames(top, ""); err != nil {
		return err
	}
	if m, ok := lookup(top, "machine"); ok {
		if err := exactObject(m, "machine."); err != nil {
			return err
		}
	}
	var metrics []json.RawMessage
	if m, ok := lookup(top, "metrics"); ok {
		if err := json.Unmarshal(m, &metrics); err != nil {
			return fmt.Errorf("decode metrics: %w", err)
		}
	}
	if len(metrics) > MaxMetrics {
		return fmt.Errorf("metrics: there are %d, at most %d are allowed", len(metrics), MaxMetrics)
	}
	for i, m := range metrics {
		if err := exactObject(m, fmt.Sprintf("metrics[%d].", i)); err != nil {
			return err
		}
	}
	for _, name := range []string{"params", "versions"} {
		if v, ok := lookup(top, name); ok && isObject(v) {
			if _, err := fields(v); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func exactObject(b json.RawMessage, at string) error {
	fs, err := fields(b)
	if err != nil {
		return fmt.Errorf("%s %w", at, err)
	}
	return exactNames(fs, at)
}

// exactNames refuses names that encoding/json takes for others: it folds case. No name of ours has an upper case letter.
func exactNames(fs []field, at string) error {
	for _, f := range fs {
		for _, r := range f.name {
			if r >= 'A' && r <= 'Z' || r > 127 {
				return fmt.Errorf("unknown field %.60q: names are in lower case", at+f.name)
			}
		}
	}
	return nil
}

// checkBody says what is wrong with a body.
func checkBody(b []byte) error {
	fs, err := fields(b)
	if err != nil {
		return fmt.Errorf("body: %w", err)
	}
	for _, name := range []string{"schema", runField} {
		if hasField(fs, name) {
			return fmt.Errorf("body: field %q is taken by the result's own form: name it otherwise", name)
		}
	}
	return nil
}

// isObject says whether valid JSON text is an object.
func isObject(b []byte) bool {
	b = bytes.TrimLeft(b, " \t\r\n")
	return len(b) > 0 && b[0] == '{'
}

// decodeNumbers decodes with json.Number for numbers, as results do.
func decodeNumbers(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(v)
}
