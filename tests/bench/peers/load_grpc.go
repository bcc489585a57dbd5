package main

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type grpcClients []*grpc.ClientConn

func (g grpcClients) close() {
	for _, c := range g {
		_ = c.Close()
	}
}

// grpcClients are n connections, which open with their first call.
func (r *runner) grpcClients(n int) (conns grpcClients, err error) {
	for range n {
		c, err := grpc.NewClient("passthrough:///"+r.at(portGRPC),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
				return r.host.Dial(ctx, "tcp", to)
			}))
		if err != nil {
			conns.close()
			return nil, err
		}
		conns = append(conns, c)
	}
	return conns, nil
}

// grpc keeps Flows calls in flight, some on each connection.
func (r *runner) grpc() (metrics, error) {
	conns, err := r.grpcClients(max(1, r.Flows/streams))
	if err != nil {
		return nil, err
	}
	defer conns.close()
	return r.repeat(r.Flows, func(i int) error {
		answer := new(wrapperspb.BytesValue)
		err := conns[i%len(conns)].Invoke(r.ctx, "/"+grpcService+"/"+grpcGet,
			new(wrapperspb.BytesValue), answer)
		return wholePage(answer, err)
	})
}

// grpcPull receives messages on one stream of each of Flows connections.
func (r *runner) grpcPull() (metrics, error) {
	conns, err := r.grpcClients(r.Flows)
	if err != nil {
		return nil, err
	}
	defer conns.close()
	from := make([]grpc.ClientStream, len(conns))
	for i, c := range conns {
		from[i], err = c.NewStream(r.ctx,
			&grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
			"/"+grpcService+"/"+grpcPull)
		if err != nil {
			return nil, err
		}
	}
	return r.repeat(len(conns), func(i int) error {
		message := new(wrapperspb.BytesValue)
		return wholePage(message, from[i].RecvMsg(message))
	})
}

func wholePage(m *wrapperspb.BytesValue, err error) error {
	if err == nil && len(m.Value) != len(body) {
		err = fmt.Errorf("message of %d bytes", len(m.Value))
	}
	return err
}
