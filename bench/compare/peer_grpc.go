package compare

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The service has one method, a server stream of bytes: for each chunk the head of its frame, then its pages.
const (
	grpcService = "kvferry.bench.Compare"
	grpcMethod  = "Session"
	// Windows and buffers beyond gRPC's defaults of 64 and 32 KiB, which cost more.
	grpcWindow  = 8 << 20
	grpcBuffer  = 256 << 10
	grpcMaximum = 4 << 20
)

func serveGRPC(c *endConfig, m *memory) (string, io.Closer, error) {
	t, err := c.serverTLS("h2")
	if err != nil {
		return "", nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(c.Host, "0"))
	if err != nil {
		return "", nil, err
	}
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(t)), grpc.MaxSendMsgSize(grpcMaximum), grpc.InitialWindowSize(grpcWindow), grpc.InitialConnWindowSize(4*grpcWindow),
		grpc.WriteBufferSize(grpcBuffer), grpc.ReadBufferSize(grpcBuffer))
	srv.RegisterService(&grpc.ServiceDesc{ServiceName: grpcService, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: grpcMethod, ServerStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			if err := s.RecvMsg(&emptypb.Empty{}); err != nil {
				return err
			}
			head := make([]byte, m.frameHead())
			for i := range m.chunks() {
				m.putHead(head, i)
				if err := errors.Join(s.SendMsg(wrapperspb.Bytes(head)), s.SendMsg(wrapperspb.Bytes(m.chunk(i)))); err != nil {
					return err
				}
			}
			return nil
		},
	}}}, nil)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) }) // ends with Stop
	return l.Addr().String(), closerFunc(func() error {
		srv.Stop()
		wg.Wait()
		return nil
	}), nil
}

// grpcMover reads one stream a transfer.
type grpcMover struct {
	*grpc.ClientConn
	m *memory
}

func dialGRPC(_ context.Context, c *endConfig, m *memory) (mover, error) {
	t, err := c.clientTLS("h2")
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+c.Addr, grpc.WithTransportCredentials(credentials.NewTLS(t)), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(grpcMaximum)),
		grpc.WithInitialWindowSize(grpcWindow), grpc.WithInitialConnWindowSize(4*grpcWindow), grpc.WithWriteBufferSize(grpcBuffer), grpc.WithReadBufferSize(grpcBuffer))
	if err != nil {
		return nil, err
	}
	return &grpcMover{conn, m}, nil
}

func (d *grpcMover) landed() int64 { return d.m.landed() }

func (d *grpcMover) move(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := d.NewStream(ctx, &grpc.StreamDesc{StreamName: grpcMethod, ServerStreams: true}, "/"+grpcService+"/"+grpcMethod)
	if err != nil {
		return err
	}
	if err := errors.Join(s.SendMsg(&emptypb.Empty{}), s.CloseSend()); err != nil {
		return err
	}
	var head, data wrapperspb.BytesValue
	per := d.m.pagesPerChunk()
	for range d.m.chunks() {
		if err := s.RecvMsg(&head); err != nil {
			return fmt.Errorf("read the stream: %w", err)
		}
		if err := s.RecvMsg(&data); err != nil {
			return fmt.Errorf("read the stream: %w", err)
		}
		if len(head.Value) != d.m.frameHead() || len(data.Value) != chunkBytes {
			return fmt.Errorf("messages of %d and %d bytes, want %d and %d", len(head.Value), len(data.Value), d.m.frameHead(), chunkBytes)
		}
		chunk := int(binary.BigEndian.Uint32(head.Value))
		for i := range per {
			if err := d.m.land(chunk*per+i, data.Value[i*d.m.page:(i+1)*d.m.page], binary.BigEndian.Uint32(head.Value[4+4*i:])); err != nil {
				return err
			}
		}
	}
	return nil
}
