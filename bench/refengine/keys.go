package refengine

import (
	"crypto/sha256"
	"encoding/binary"
)

// HashAlgorithm names how BlockKeys chains, in the layout pin.
const HashAlgorithm = "sha256_chain"

// BlockKeys returns the 32-byte keys of the whole blocks of tokens, in order.
// The key of a block is SHA-256 of the key before it, or of SHA-256(seed) for
// the first block, followed by its tokens as little-endian uint32: it names
// the whole prefix. blockTokens must be positive.
func BlockKeys(seed string, blockTokens int, tokens []int) [][]byte {
	keys := make([][]byte, 0, len(tokens)/blockTokens)
	parent := rootKey(seed)
	for ; len(tokens) >= blockTokens; tokens = tokens[blockTokens:] {
		parent = nextKey(parent, tokens[:blockTokens])
		keys = append(keys, parent)
	}
	return keys
}

func rootKey(seed string) []byte {
	h := sha256.Sum256([]byte(seed))
	return h[:]
}

func nextKey(parent []byte, tokens []int) []byte {
	b := make([]byte, len(parent), len(parent)+4*len(tokens))
	copy(b, parent)
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	h := sha256.Sum256(b)
	return h[:]
}
