package main

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Methods of the gRPC service.
const (
	grpcService = "perf.Page"
	grpcGet     = "Get"  // answers with 1 KiB
	grpcPull    = "Pull" // sends messages of 1 KiB until the call ends
)

// grpcServer has a service whose messages are of protobuf's own types.
func grpcServer() *grpc.Server {
	page := wrapperspb.Bytes(body)
	get := func(_ any, _ context.Context, decode func(any) error,
		_ grpc.UnaryServerInterceptor) (any, error) {
		return page, decode(new(wrapperspb.BytesValue))
	}
	pull := func(_ any, to grpc.ServerStream) error {
		for {
			if err := to.SendMsg(page); err != nil {
				return err
			}
		}
	}
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{ServiceName: grpcService, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: grpcGet, Handler: get}},
		Streams: []grpc.StreamDesc{{StreamName: grpcPull, Handler: pull, ServerStreams: true,
			ClientStreams: true}}}, s)
	return s
}
