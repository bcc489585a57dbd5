package grpc

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// A gRPC server on one stack and a client on another: grpc.Server takes the listener, and the
// client the dialler.
func Example() {
	a, b := netpair.NewPorts(netpair.Faults{})
	server := on(a, "192.0.2.1/24")
	defer server.Close()
	client := on(b, "192.0.2.2/24")
	defer client.Close()

	ln, err := server.Listen("tcp", ":50051")
	check(err)
	srv := grpc.NewServer()
	defer srv.Stop()
	grpc_health_v1.RegisterHealthServer(srv, health.NewServer())
	go srv.Serve(ln)

	conn, err := grpc.NewClient("passthrough:///192.0.2.1:50051",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn,
			error) {
			return client.DialContext(ctx, "tcp", addr)
		}))
	check(err)
	defer conn.Close()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(),
		&grpc_health_v1.HealthCheckRequest{})
	check(err)
	fmt.Println(answer.Status)
	// Output: SERVING
}

func on(port *netpair.Port, address string) *stack.Stack {
	st, err := stack.New(port,
		stack.Config{Addresses: []netip.Prefix{netip.MustParsePrefix(address)},
			Addressing: stack.AddressOptions{DuplicateDetection: -1}})
	check(err)
	return st
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
