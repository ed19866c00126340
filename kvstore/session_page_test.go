package kvstore_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvferry/kvferry/kvstore"
)

// A page is what a walk of the list gives, whatever it is asked to begin after, and the pages are the list.
func TestPage(t *testing.T) {
	s := openSessions(t, "", "a")
	rng := rand.New(rand.NewPCG(1, 2))
	names := []string{"", "a", "ab", "b", "~", "日"}
	for i := range 300 {
		in := session(1, 16)
		in.Tenant, in.ID = kvstore.Tenant(names[rng.IntN(len(names))]), kvstore.SessionID(fmt.Sprint(names[rng.IntN(len(names))], i))
		mustPublish(t, s, in)
	}
	list := s.List()
	walk := func(t kvstore.Tenant, after kvstore.SessionID, match func(kvstore.Tenant) bool) (out []kvstore.SessionID) {
		for _, in := range list {
			if (in.Tenant > t || in.Tenant == t && in.ID > after) && match(in.Tenant) {
				out = append(out, in.ID)
			}
		}
		return out
	}
	ids := func(page []kvstore.Session) (out []kvstore.SessionID) {
		for _, in := range page {
			out = append(out, in.ID)
		}
		return out
	}
	for range 2000 {
		some := names[rng.IntN(len(names))]
		match := func(t kvstore.Tenant) bool { return some == "~" || string(t) == some }
		tenant, after := kvstore.Tenant(names[rng.IntN(len(names))]), kvstore.SessionID(fmt.Sprint(names[rng.IntN(len(names))], rng.IntN(300)))
		if rng.IntN(8) == 0 {
			tenant, after = "\xff\x00", "\xfe"
		}
		limit := rng.IntN(20) - 1
		want := walk(tenant, after, match)
		page, more := s.Page(tenant, after, match, limit)
		if n := min(len(want), max(1, limit)); !slices.Equal(ids(page), want[:n]) || more != (len(want) > n) {
			t.Fatalf("after %q %q, %d of tenant %q: %q, more %v; want %q of %d", tenant, after, limit, some, ids(page), more, want[:n], len(want))
		}
	}
	all := func(kvstore.Tenant) bool { return true }
	for _, limit := range []int{1, 7, 299, 300, 1000} {
		var got []kvstore.SessionID
		var last kvstore.Session
		for more := true; more; {
			var page []kvstore.Session
			page, more = s.Page(last.Tenant, last.ID, all, limit)
			got, last = append(got, ids(page)...), page[len(page)-1]
		}
		if !slices.Equal(got, ids(list)) {
			t.Errorf("pages of %d: %q", limit, got)
		}
	}
	if page, more := openSessions(t, "", "a").Page("", "", all, 5); len(page) != 0 || more {
		t.Errorf("of nothing: %v, %v", page, more)
	}
}
