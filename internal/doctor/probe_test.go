package doctor

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"
)

// The answer is read as RFC 9000 section 17.2.1 draws it.
func TestProbeAnswer(t *testing.T) {
	t.Parallel()
	id, packet := newProbe()
	if len(packet) != probeBytes || packet[0]&0xc0 != 0xc0 || packet[1]&0x0f != 0x0a || packet[4]&0x0f != 0x0a {
		t.Errorf("probe %x", packet[:24])
	}
	// Version negotiation: first byte, version 0, the ids swapped, the versions.
	answer := append([]byte{0x80, 0, 0, 0, 0, 8}, packet[15:23]...)
	answer = append(append(answer, 8), packet[6:14]...)
	answer = binary.BigEndian.AppendUint32(answer, 1)
	if got := probeAnswer(answer); got != id {
		t.Errorf("%x, want %x", got, id)
	}
	for name, b := range map[string][]byte{"short header": append([]byte{0x40}, answer[1:]...), "another version": append([]byte{0x80, 0, 0, 0, 1}, answer[5:]...), "cut": answer[:13], "empty": nil} {
		if got := probeAnswer(b); got != 0 {
			t.Errorf("%s: %x", name, got)
		}
	}
}

func FuzzProbeAnswer(f *testing.F) {
	f.Add([]byte{0x80, 0, 0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		id := probeAnswer(b)
		if id != 0 && !bytes.Equal(binary.BigEndian.AppendUint64(nil, id), b[6:14]) {
			t.Errorf("%x from %x", id, b)
		}
	})
}

// Garbage and answers to others are no answer.
func TestProbeIgnoresOthers(t *testing.T) {
	t.Parallel()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // until server is closed
		defer close(done)
		buf := make([]byte, 2048)
		for {
			_, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			for _, b := range [][]byte{{}, {1, 2, 3}, append([]byte{0x80, 0, 0, 0, 0, 8}, make([]byte, 20)...), buf[:1200]} {
				_, _ = server.WriteTo(b, from)
			}
		}
	}()
	defer func() { _ = server.Close(); <-done }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	res, err := probe(ctx, server.LocalAddr().String())
	if !errors.Is(err, errSilent) || res.answered != 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

// A closed port is told apart from a silent one, and soon.
func TestProbeClosedPort(t *testing.T) {
	t.Parallel()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := server.LocalAddr().String()
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := probe(t.Context(), at); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) > 2*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}
