package kvstore_test

import (
	"errors"
	"math"
	"testing"

	"github.com/kvferry/kvferry/kvstore"
)

// A session goes under an epoch later than its own and than the one that its new owner knows of; the recorded owner, which asks again, gets the recorded one.
func TestHandOverAbove(t *testing.T) {
	for _, tc := range []struct{ above, want uint64 }{{0, 2}, {1, 2}, {2, 3}, {7, 8}, {math.MaxUint64 - 1, math.MaxUint64}} {
		s := openSessions(t, "", "a")
		mustPublish(t, s, session(1, 16))
		h := kvstore.HandOver{ID: "s", Migration: "m", To: "b", Epoch: 1, Version: 1, Above: tc.above}
		for range 2 { // the second time it is not done again
			if res, err := s.HandOver(h); err != nil || res.Outcome != kvstore.Moved || res.Epoch != tc.want {
				t.Errorf("above %d: %+v, %v, want epoch %d", tc.above, res, err, tc.want)
			}
		}
		h.Migration, h.Epoch, h.Above = "again", tc.want, 100
		if res, err := s.HandOver(h); err != nil || res.Epoch != tc.want {
			t.Errorf("asked for again by another migration: %+v, %v, want epoch %d", res, err, tc.want)
		}
	}
	var fe *kvstore.FieldError
	if err := (kvstore.HandOver{ID: "s", Migration: "m", To: "b", Above: math.MaxUint64}).Validate(); !errors.As(err, &fe) || fe.Field != "above" {
		t.Errorf("the last epoch: %v", err)
	}
}
