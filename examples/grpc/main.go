// Command grpc is a gRPC server with the standard health service on a slice of an RDMA port. It is
// a module of its own because grpc is large.
//
//	cd examples/grpc
//	go build && sudo ./grpc -device sim
//	grpc-health-probe -addr 192.0.2.10:50051   # or grpcurl
//
// On a ConnectX: -device mlx5_0 -address ADDRESS/LENGTH.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/netip"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rdma-netstack/rdma-netstack/examples/internal/device"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

func main() {
	name := flag.String("device", "mlx5_0", device.Help)
	address := flag.String("address", device.Address, "our address and its prefix length")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *address); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, name, address string) (err error) {
	addr, err := netip.ParsePrefix(address)
	if err != nil {
		return err
	}
	nic, done, err := device.Config(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	st, err := stack.Open(ctx, stack.Config{NIC: nic, Addresses: []netip.Prefix{addr}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	ln, err := st.Listen("tcp", ":50051")
	if err != nil {
		return err
	}
	log.Printf("serving on %s:50051", addr.Addr())
	return serve(ctx, ln)
}

// serve answers until ctx ends, and then finishes calls under way.
func serve(ctx context.Context, ln net.Listener) error {
	srv := grpc.NewServer()
	state := health.NewServer()
	grpc_health_v1.RegisterHealthServer(srv, state)
	stop := context.AfterFunc(ctx, func() {
		state.Shutdown() // clients that watch the health service are told
		srv.GracefulStop()
	})
	defer stop()
	return srv.Serve(ln)
}
