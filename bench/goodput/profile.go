package goodput

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxProfile bounds a decoded CPU profile, bytes.
const maxProfile = 256 << 20

// errProfile is wrapped by every error of labelSums.
var errProfile = errors.New("malformed profile")

// labelSums decodes a gzipped pprof profile (profile.proto of github.com/google/pprof) as far as needed: the sum of the last
// value of its samples (of a CPU profile: nanoseconds), by the text of the label key; "" for samples without it.
func labelSums(gz []byte, key string) (map[string]int64, error) {
	zr, err := gzip.NewReader(bytes.NewReader(gz))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errProfile, err)
	}
	raw, err := io.ReadAll(io.LimitReader(zr, maxProfile+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errProfile, err)
	}
	if len(raw) > maxProfile {
		return nil, fmt.Errorf("%w: more than %d bytes", errProfile, maxProfile)
	}
	return rawLabelSums(raw, key)
}

// Fields of profile.proto.
const (
	profileSample, profileStrings = 2, 6
	sampleValue, sampleLabel      = 2, 3
	labelKey, labelText           = 1, 2
)

func rawLabelSums(raw []byte, key string) (map[string]int64, error) {
	var strings []string
	var samples [][]byte
	err := eachField(raw, func(n protowire.Number, _ uint64, b []byte) {
		switch n {
		case profileSample:
			samples = append(samples, b)
		case profileStrings:
			strings = append(strings, string(b))
		}
	})
	if err != nil {
		return nil, err
	}
	sums := map[string]int64{}
	for _, s := range samples {
		value, text, err := sampleOf(s, strings, key)
		if err != nil {
			return nil, err
		}
		sums[text] += value
	}
	return sums, nil
}

// sampleOf returns a sample's last value and its label of that key.
func sampleOf(raw []byte, strings []string, key string) (value int64, text string, err error) {
	var labels [][]byte
	var bad error
	err = eachField(raw, func(n protowire.Number, v uint64, b []byte) {
		switch n {
		case sampleValue:
			if b == nil {
				value = int64(v)
				return
			}
			for len(b) > 0 { // packed
				v, size := protowire.ConsumeVarint(b)
				if size < 0 {
					bad = fmt.Errorf("%w: %w", errProfile, protowire.ParseError(size))
					return
				}
				value, b = int64(v), b[size:]
			}
		case sampleLabel:
			labels = append(labels, b)
		}
	})
	if err = errors.Join(err, bad); err != nil {
		return 0, "", err
	}
	for _, l := range labels {
		var k, t uint64
		if err := eachField(l, func(n protowire.Number, v uint64, _ []byte) {
			switch n {
			case labelKey:
				k = v
			case labelText:
				t = v
			}
		}); err != nil {
			return 0, "", err
		}
		if k >= uint64(len(strings)) || t >= uint64(len(strings)) {
			return 0, "", fmt.Errorf("%w: string %d, %d of %d", errProfile, k, t, len(strings))
		}
		if strings[k] == key {
			text = strings[t]
		}
	}
	return value, text, nil
}

// eachField calls f for each field of a message: v for varints, b (not nil) for bytes. Others are skipped.
func eachField(raw []byte, f func(n protowire.Number, v uint64, b []byte)) error {
	for len(raw) > 0 {
		n, typ, size := protowire.ConsumeTag(raw)
		if size < 0 {
			return fmt.Errorf("%w: %w", errProfile, protowire.ParseError(size))
		}
		raw = raw[size:]
		switch typ {
		case protowire.VarintType:
			var v uint64
			if v, size = protowire.ConsumeVarint(raw); size >= 0 {
				f(n, v, nil)
			}
		case protowire.BytesType:
			var b []byte
			if b, size = protowire.ConsumeBytes(raw); size >= 0 {
				f(n, 0, append([]byte{}, b...))
			}
		default:
			size = protowire.ConsumeFieldValue(n, typ, raw)
		}
		if size < 0 {
			return fmt.Errorf("%w: %w", errProfile, protowire.ParseError(size))
		}
		raw = raw[size:]
	}
	return nil
}
