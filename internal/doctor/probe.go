package doctor

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// probeBytes is the size of a probe: a QUIC server ignores an unknown version in a datagram below 1,200 bytes
// (RFC 9000 section 6.1).
const probeBytes = 1200

// probeVersion is reserved to force version negotiation (RFC 9000 section 15: 0x?a?a?a?a).
const probeVersion = 0x4a6a8aaa

// probeAt is when probes are sent; probeLast is how long the last one is waited for.
var probeAt = []time.Duration{0, 100 * time.Millisecond, 600 * time.Millisecond, 1600 * time.Millisecond}

const probeLast = 2 * time.Second

// errSilent: nothing came back.
var errSilent = errors.New("no answer")

// probeResult is what a peer's UDP port did.
type probeResult struct {
	from           net.Addr
	sent, answered int
	rtt            time.Duration // least
}

// probe sends datagrams that any QUIC server must answer with a version negotiation (RFC 9000 section 6), without a
// handshake, a certificate or any state at the server. It returns errSilent, or an error that wraps ECONNREFUSED for a
// port where nothing listens, or what the system says of the address.
func probe(ctx context.Context, address string) (probeResult, error) {
	var res probeResult
	conn, err := new(net.Dialer).DialContext(ctx, "udp", address)
	if err != nil {
		return res, err
	}
	defer func() { _ = conn.Close() }() // nothing is buffered
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	res.from = conn.RemoteAddr()
	began := time.Now()
	sentAt := make(map[uint64]time.Time, len(probeAt))
	var lastErr error
	buf := make([]byte, 1500)
	for i := range probeAt {
		id, packet := newProbe()
		sentAt[id] = time.Now()
		res.sent++
		if _, err := conn.Write(packet); err != nil {
			lastErr = err
		}
		until := began.Add(probeAt[i] + probeLast)
		if i+1 < len(probeAt) {
			until = began.Add(probeAt[i+1])
		}
		if err := conn.SetReadDeadline(until); err != nil {
			return res, err
		}
		for ctx.Err() == nil {
			n, err := conn.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil { // an ICMP message came for an earlier probe
				lastErr = err
				if errors.Is(err, syscall.ECONNREFUSED) {
					break
				}
				continue
			}
			if at, ours := sentAt[probeAnswer(buf[:n])]; ours {
				res.answered++
				if d := time.Since(at); res.rtt == 0 || d < res.rtt {
					res.rtt = d
				}
				break
			}
		}
		if ctx.Err() != nil {
			break
		}
		if res.answered >= 2 || errors.Is(lastErr, syscall.ECONNREFUSED) && i >= 1 {
			break
		}
	}
	switch {
	case res.answered > 0:
		return res, nil
	case lastErr != nil:
		return res, lastErr
	case ctx.Err() != nil:
		return res, fmt.Errorf("%w within %v", errSilent, time.Since(began).Round(time.Second))
	}
	return res, fmt.Errorf("%w to %d datagrams of %d bytes", errSilent, res.sent, probeBytes)
}

// newProbe is a long-header packet (RFC 8999 section 5.1) of a version that nobody speaks, with a random source
// connection id that the answer repeats.
func newProbe() (uint64, []byte) {
	p := make([]byte, probeBytes)
	p[0] = 0xc0 // long header, fixed bit
	binary.BigEndian.PutUint32(p[1:], probeVersion)
	p[5] = 8                   // destination connection id
	_, _ = rand.Read(p[6:14])  // documented never to fail
	p[14] = 8                  // source connection id
	_, _ = rand.Read(p[15:23]) // likewise
	return binary.BigEndian.Uint64(p[15:]), p
}

// probeAnswer returns the connection id that a version negotiation packet answers to, 0 for any other packet.
func probeAnswer(p []byte) uint64 {
	// RFC 9000 section 17.2.1: long header, version 0, the client's source id as destination id.
	if len(p) < 14 || p[0]&0x80 == 0 || binary.BigEndian.Uint32(p[1:]) != 0 || p[5] != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(p[6:])
}
