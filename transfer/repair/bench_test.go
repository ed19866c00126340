package repair

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// perGB turns the time of a packet of 1,452 bytes, most of them payload, into seconds a gigabyte.
func perGB(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1452, "s/GB")
}

// stream is packets of a full path with parity, as they arrive.
func stream(symbols int) (packets [][]byte, s *sender) {
	r := rand.New(rand.NewPCG(5, 1))
	s = testSender(MaxGroup, symbols, 1)
	s.trusted = MaxPacket
	for range 4 * MaxGroup {
		packets = append(packets, randomPacket(r, MaxPacket))
	}
	return packets, s
}

// BenchmarkEncode is the sender's cost a packet of 1,452 bytes.
func BenchmarkEncode(b *testing.B) {
	for _, symbols := range []int{2, 4, 6, 16} {
		b.Run(fmt.Sprintf("symbols=%d", symbols), func(b *testing.B) {
			packets, s := stream(symbols)
			var room [4]*group
			b.SetBytes(MaxPacket)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				closed := s.add(packets[i%len(packets)], epoch, room[:0])
				s.free = append(s.free, closed...)
				i++
			}
			perGB(b)
		})
	}
}

// BenchmarkReceive is the receiver's cost a packet, parity's share included: "off"
// where no parity comes, "clean" where none is needed, then with packets lost in each group.
func BenchmarkReceive(b *testing.B) {
	drop := func([]byte) {}
	b.Run("off", func(b *testing.B) {
		packets, _ := stream(2)
		rx := &receiver{maxSpan: defaultMaxSpan}
		b.SetBytes(MaxPacket)
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			rx.keep(packets[i%len(packets)], drop)
			i++
		}
		perGB(b)
	})
	for _, lost := range []int{0, 1, 3} {
		b.Run(fmt.Sprintf("lost=%d", lost), func(b *testing.B) {
			packets, s := stream(6)
			rx := &receiver{maxSpan: defaultMaxSpan}
			var room [4]*group
			// Four groups, encoded once; their numbers are made to go on.
			var parities [][]byte
			var closed []*group
			for _, p := range packets {
				if closed = s.add(p, epoch, room[:0]); len(closed) > 0 {
					parities = append(parities, split(closed)...)
				}
			}
			b.SetBytes(MaxPacket)
			b.ReportAllocs()
			i, group := 0, uint32(0)
			for b.Loop() {
				at := i % len(packets)
				if at%MaxGroup >= lost || group == 0 {
					rx.keep(packets[at], drop)
				}
				if at%MaxGroup == MaxGroup-1 {
					for _, p := range parities[at/MaxGroup*6 : at/MaxGroup*6+6] {
						binary.BigEndian.PutUint32(p[10:], group*MaxGroup)
						h, f, sym, err := decodeParity(p)
						if err != nil {
							b.Fatal(err)
						}
						rx.take(h, f, sym, epoch, drop)
					}
					group++
				}
				i++
			}
			perGB(b)
			if lost > 0 && group > 8 && rx.counts.repaired == 0 {
				b.Fatalf("%+v", rx.counts)
			}
		})
	}
}
