package prefill

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzDecodeUsage(f *testing.F) {
	f.Add([]byte(`{"id":"cmpl-1","choices":[{"text":"a"}],"usage":{"prompt_tokens":32,"total_tokens":33,"prompt_tokens_details":{"cached_tokens":16}}}`))
	f.Add([]byte(`{"choices":[{}],"usage":null}`))
	f.Add([]byte(`{"choices":[null],"usage":{"prompt_tokens":-1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := decodeUsage(b)
		if err != nil {
			return
		}
		if u.prompt < 0 || u.cached < 0 || u.hasPrompt && u.cached > u.prompt || !u.hasPrompt && u.prompt != 0 || !u.hasCached && u.cached != 0 {
			t.Fatalf("%+v", u)
		}
		again := map[string]any{}
		if u.hasPrompt {
			again["prompt_tokens"] = u.prompt
		}
		if u.hasCached {
			again["prompt_tokens_details"] = map[string]int{"cached_tokens": u.cached}
		}
		out, err := json.Marshal(map[string]any{"choices": []int{0}, "usage": again})
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decodeUsage(out); err != nil || back != u {
			t.Fatalf("%+v became %+v, %v", u, back, err)
		}
	})
}

func FuzzDecodeTokens(f *testing.F) {
	f.Add([]byte(`{"count":2,"max_model_len":10,"tokens":[1,2]}`))
	f.Add([]byte(`{"tokens":[2147483648]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		tokens, err := decodeTokens(b)
		if err != nil {
			return
		}
		if len(tokens) == 0 || len(tokens) > len(b) || slices.Min(tokens) < 0 {
			t.Fatalf("%d tokens of %d bytes", len(tokens), len(b))
		}
		out, err := json.Marshal(map[string]any{"tokens": tokens})
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decodeTokens(out); err != nil || !slices.Equal(back, tokens) {
			t.Fatalf("%v became %v, %v", tokens, back, err)
		}
	})
}

func FuzzErrorMessage(f *testing.F) {
	f.Add([]byte(`{"error":{"message":"x"}}`))
	f.Add([]byte(`{"detail":[{"msg":"y"}]}`))
	f.Add([]byte("\xff\xfe"))
	for _, r := range []string{"é", "語", "🜚"} {
		for shift := range 4 {
			f.Add([]byte("abc"[:min(shift, 3)] + strings.Repeat(r, maxMessage)))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := errorMessage(b)
		if len(s) > maxMessage || utf8.Valid(b) && !utf8.ValidString(s) {
			t.Fatalf("%d bytes: %q", len(s), s)
		}
		if utf8.Valid(b) && !json.Valid(b) && len(s) < min(len(b), maxMessage-utf8.UTFMax+1) {
			t.Fatalf("%d bytes of %d: %q", len(s), len(b), s)
		}
	})
}
