package compare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
)

// http2Windows are the largest frame and windows that net/http takes: its defaults (16 KiB frames) cost more.
func http2Windows() *http.HTTP2Config {
	return &http.HTTP2Config{MaxReadFrameSize: 1 << 20, MaxReceiveBufferPerConnection: 4<<20 - 1, MaxReceiveBufferPerStream: 4<<20 - 1}
}

func onlyHTTP2() *http.Protocols {
	var p http.Protocols
	p.SetHTTP2(true)
	return &p
}

func serveHTTP2(c *endConfig, m *memory) (string, io.Closer, error) {
	t, err := c.serverTLS("h2")
	if err != nil {
		return "", nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(c.Host, "0"))
	if err != nil {
		return "", nil, err
	}
	srv := &http.Server{TLSConfig: t, Protocols: onlyHTTP2(), HTTP2: http2Windows(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := make([]byte, m.frameHead())
		for i := range m.chunks() {
			if err := m.writeFrame(w, i, head); err != nil {
				return // the destination sees its stream end
			}
		}
	})}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.ServeTLS(l, "", "") }) // ends with Close
	return l.Addr().String(), closerFunc(func() error {
		err := srv.Close()
		wg.Wait()
		return err
	}), nil
}

// http2Mover gets everything as one response.
type http2Mover struct {
	client *http.Client
	url    string
	frames *frameReader
}

func dialHTTP2(ctx context.Context, c *endConfig, m *memory) (mover, error) {
	t, err := c.clientTLS("h2")
	if err != nil {
		return nil, err
	}
	d := &http2Mover{
		client: &http.Client{Transport: &http.Transport{TLSClientConfig: t, Protocols: onlyHTTP2(), HTTP2: http2Windows()}},
		url:    "https://" + c.Addr + "/", frames: newFrameReader(m),
	}
	return d, ctx.Err()
}

func (d *http2Mover) landed() int64 { return d.frames.m.landed() }

func (d *http2Mover) move(ctx context.Context) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url, nil)
	if err != nil {
		return err
	}
	res, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	if res.StatusCode != http.StatusOK || res.ProtoMajor != 2 {
		return fmt.Errorf("answered %s over %s, want 200 over HTTP/2", res.Status, res.Proto)
	}
	for range d.frames.m.chunks() {
		if err := d.frames.next(res.Body); err != nil {
			return fmt.Errorf("read the response: %w", err)
		}
	}
	return nil
}

func (d *http2Mover) Close() error {
	d.client.CloseIdleConnections()
	return nil
}
