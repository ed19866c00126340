package refengine

import (
	"bytes"
	"slices"
)

// sequence is a cached sequence: KV and what its whole blocks are called. It
// belongs to the engine's list or to one request, never to both.
type sequence struct {
	tenant string
	keys   [][]byte
	// final says, block by block, that the KV is as the daemon has it: loaded,
	// or perturbed and committed. A final block is not perturbed again.
	final []bool
	mem   memory
}

func (s *sequence) add(key []byte, final bool) {
	s.keys, s.final = append(s.keys, key), append(s.final, final)
}

// cut keeps the first n blocks.
func (s *sequence) cut(n, blockTokens int) {
	if n < len(s.keys) {
		clear(s.keys[n:])
		s.keys, s.final = s.keys[:n], s.final[:n]
	}
	s.mem.truncate(n * blockTokens)
}

// match is how many leading blocks s shares with keys; with onlyFinal it stops
// at one that is not final.
func (s *sequence) match(tenant string, keys [][]byte, onlyFinal bool) int {
	if s.tenant != tenant {
		return 0
	}
	n := 0
	for n < len(s.keys) && n < len(keys) && bytes.Equal(s.keys[n], keys[n]) && (s.final[n] || !onlyFinal) {
		n++
	}
	return n
}

// localCache is the engine's own cache, the sequence used most recently last.
// Not safe for concurrent use: the engine's turn guards it.
type localCache struct {
	keep      int
	sequences []*sequence
}

// take removes the sequence that shares most blocks with keys from the cache
// and cuts it to them; nil if none shares any.
func (c *localCache) take(tenant string, keys [][]byte, onlyFinal bool, blockTokens int) *sequence {
	best, at := 0, -1
	for i, s := range c.sequences {
		if n := s.match(tenant, keys, onlyFinal); n > 0 && n >= best {
			best, at = n, i
		}
	}
	if at < 0 {
		return nil
	}
	s := c.sequences[at]
	c.sequences = slices.Delete(c.sequences, at, at+1)
	s.cut(best, blockTokens)
	return s
}

// put keeps s; whole blocks only are of use later.
func (c *localCache) put(s *sequence) {
	if len(s.keys) == 0 || c.keep == 0 {
		return
	}
	c.sequences = append(c.sequences, s)
	if n := len(c.sequences) - c.keep; n > 0 {
		c.sequences = slices.Delete(c.sequences, 0, n)
	}
}

// makeRoom drops the oldest sequences so that another fits beside the rest.
func (c *localCache) makeRoom() {
	if n := len(c.sequences) - max(c.keep-1, 0); n > 0 {
		c.sequences = slices.Delete(c.sequences, 0, n)
	}
}

// invalidate cuts every sequence before the first of the named blocks.
func (c *localCache) invalidate(tenant string, keys [][]byte, blockTokens int) {
	bad := map[string]bool{}
	for _, k := range keys {
		bad[string(k)] = true
	}
	for _, s := range c.sequences {
		if s.tenant != tenant {
			continue
		}
		for i, k := range s.keys {
			if bad[string(k)] {
				s.cut(i, blockTokens)
				break
			}
		}
	}
}

func (c *localCache) forget() { clear(c.sequences); c.sequences = c.sequences[:0] }
