package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// A request that can't be decoded is its caller's fault. gRPC itself calls it Internal, and says so before any of our code is asked: so
// the codec lets such a request pass and notes why, and the handler refuses it.

// lenientCodec is the codec of protobuf, which notes why it could not decode a request of ours.
type lenientCodec struct {
	encoding.CodecV2
	faults *sync.Map // proto.Message -> error, taken out by refuse
}

func newLenientCodec() *lenientCodec {
	return &lenientCodec{CodecV2: encoding.GetCodecV2(protocodec.Name), faults: &sync.Map{}}
}

// Unmarshal decodes data into v.
func (c *lenientCodec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	if m, ok := v.(proto.Message); err != nil && ok && strings.HasPrefix(string(m.ProtoReflect().Descriptor().FullName()), "kvferry.v1.") {
		c.faults.Store(v, err)
		return nil
	}
	return err
}

// refuse returns the failure of a request that was received as v and is no message of its kind.
func (c *lenientCodec) refuse(v any, err error) error {
	fault, bad := c.faults.LoadAndDelete(v)
	if err != nil || !bad {
		return err
	}
	return toStatus(&Failure{
		Reason: ReasonInvalid, Message: shortened(fmt.Sprintf("the request can't be decoded: %v", fault)),
		Fix: "make requests with code generated from kvferry.v1 of this release",
	})
}

// registrar registers services whose handlers refuse what the codec could not decode.
type registrar struct {
	grpc.ServiceRegistrar
	codec *lenientCodec
}

// RegisterService registers a service with its handlers wrapped.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	own := *desc
	own.Methods, own.Streams = slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	for i, m := range desc.Methods {
		own.Methods[i].Handler = func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			return m.Handler(srv, ctx, func(v any) error { return r.codec.refuse(v, dec(v)) }, interceptor)
		}
	}
	for i, m := range desc.Streams {
		own.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error { return m.Handler(srv, requestStream{stream, r.codec}) }
	}
	r.ServiceRegistrar.RegisterService(&own, impl)
}

// requestStream is the server's end of a stream.
type requestStream struct {
	grpc.ServerStream
	codec *lenientCodec
}

// RecvMsg receives the next request.
func (s requestStream) RecvMsg(m any) error { return s.codec.refuse(m, s.ServerStream.RecvMsg(m)) }
