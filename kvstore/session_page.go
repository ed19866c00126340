package kvstore

import "slices"

// Page returns the records that come after a tenant's session in the order of List, of the tenants that match, at most limit of them and at least one; and
// whether there are more. It looks at all records, and keeps and copies only what it returns. match is called with the store locked, once a tenant. The result is
// the caller's own.
func (s *Sessions) Page(t Tenant, after SessionID, match func(Tenant) bool, limit int) (page []Session, more bool) {
	limit = max(1, limit)
	last, full := sessionKey{}, false // of the least that there were
	keys, matches := []sessionKey{}, map[Tenant]bool{}
	least := func() {
		slices.SortFunc(keys, sessionKey.compare)
		keys = keys[:min(len(keys), limit+1)]
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for k := range s.mu.records {
		if k.compare(sessionKey{t, after}) <= 0 || full && k.compare(last) > 0 {
			continue
		}
		ok, known := matches[k.tenant]
		if !known {
			ok = match(k.tenant)
			matches[k.tenant] = ok
		}
		if !ok {
			continue
		}
		if keys = append(keys, k); len(keys) >= 2*(limit+1) {
			least()
			last, full = keys[limit], true
		}
	}
	least()
	for _, k := range keys[:min(len(keys), limit)] {
		page = append(page, s.mu.records[k].session.clone())
	}
	return page, len(keys) > limit
}
