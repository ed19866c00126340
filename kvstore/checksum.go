package kvstore

import (
	"encoding/binary"
	"hash/crc32"
	"sync"
)

// The header that seeds a page checksum:
//
//	offset  size  field
//	0       1     version, 1
//	1       32    layout pin
//	33      2     key length in bytes, big-endian
//	35      n     block key
//	35+n    4     layer, big-endian
//
// Every field has a fixed place given the key's length, so no two (pin, key, layer) share a header.
const (
	sumVersion   = 1
	maxSumHeader = 1 + len(Pin{}) + 2 + MaxKeyBytes + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumHeaders keeps PageSum from allocating: the header escapes into hash/crc32's assembly.
var sumHeaders = sync.Pool{New: func() any { return new([maxSumHeader]byte) }}

// PageSum returns the CRC32C of page seeded with (pin ‖ key ‖ layer): the checksum of the header above followed by
// page. A page moved to another layer, block or layout has another sum even when its bytes are equal, so a page
// swapped together with its sum does not pass. It is not a cryptographic hash: it guards against faults, not forgers.
// Keys longer than MaxKeyBytes are cut there. Safe for concurrent use; does not allocate.
func PageSum(pin Pin, key BlockKey, layer int, page []byte) uint32 {
	h := sumHeaders.Get().(*[maxSumHeader]byte)
	sum := crc32.Update(crc32.Update(0, castagnoli, appendSumHeader(h[:0], pin, key, layer)), castagnoli, page)
	sumHeaders.Put(h)
	return sum
}

func appendSumHeader(b []byte, pin Pin, key BlockKey, layer int) []byte {
	key = key[:min(len(key), MaxKeyBytes)]
	b = append(b, sumVersion)
	b = append(b, pin[:]...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(key)))
	b = append(b, key...)
	return binary.BigEndian.AppendUint32(b, uint32(layer))
}
