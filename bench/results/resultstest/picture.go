// Package resultstest has helpers for tests of what makes [results].
package resultstest

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"testing"

	"github.com/kvferry/kvferry/bench/results"
)

// CheckPicture fails the test where a plot can't be drawn, or what is drawn is no picture.
func CheckPicture(t testing.TB, p results.Plot) {
	t.Helper()
	raster, err := p.PNG()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(raster)); err != nil {
		t.Error(err)
	}
	vector, err := p.SVG()
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(vector)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
