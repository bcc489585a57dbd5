package main

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// TestHealth calls the service over a memory wire, then stops it.
func TestHealth(t *testing.T) {
	server, client := stacktest.Pair(t)
	ln, err := server.Listen("tcp", ":50051")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, ln) }()

	conn, err := grpc.NewClient("passthrough:///192.0.2.1:50051",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return client.DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	patient, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(patient,
		&grpc_health_v1.HealthCheckRequest{})
	if err != nil || answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health is %v, %v", answer, err)
	}
	stop()
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
}
