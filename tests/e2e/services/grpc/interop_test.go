// Package grpc runs gRPC's own interoperability suite over the stack.
package grpc

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
)

// cases are those of https://github.com/grpc/grpc/blob/master/doc/interop-test-descriptions.md that
// need no cloud service. cancel_after_begin is replaced by cancelAfterBegin.
var cases = []struct {
	name string
	run  func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption)
}{
	{"empty_unary", interop.DoEmptyUnaryCall},
	{"large_unary", interop.DoLargeUnaryCall},
	{"client_streaming", interop.DoClientStreaming},
	{"server_streaming", interop.DoServerStreaming},
	{"ping_pong", interop.DoPingPong},
	{"empty_stream", interop.DoEmptyStream},
	{"timeout_on_sleeping_server", interop.DoTimeoutOnSleepingServer},
	{"cancel_after_first_response", interop.DoCancelAfterFirstResponse},
	{"custom_metadata", interop.DoCustomMetadata},
	{"status_code_and_message", interop.DoStatusCodeAndMessage},
	{"special_status_message", interop.DoSpecialStatusMessage},
}

func TestInterop(t *testing.T) {
	world.Module(t, "google.golang.org/grpc")
	world.Each(t, func(t *testing.T, w *world.World) {
		id := world.NewIdentity(t)
		secret := credentials.NewTLS(id.Client("h2"))
		t.Run("plain, server on the stack", func(t *testing.T) {
			suite(t, w, serve(t, w.Server, world.Server4, 80), w.Client, insecure.NewCredentials())
		})
		t.Run("TLS, server on the stack", func(t *testing.T) {
			suite(t, w, serve(t, w.Server, world.Server4, 443,
				grpc.Creds(credentials.NewTLS(id.Server("h2")))), w.Client, secret)
		})
		t.Run("TLS, client on the stack", func(t *testing.T) {
			suite(t, w, serve(t, w.Client, world.Client4, 443,
				grpc.Creds(credentials.NewTLS(id.Server("h2")))), w.Server, secret)
		})
	})
}

// serve starts an interop server and returns its address.
func serve(t *testing.T, h world.Host, at string, port int, opts ...grpc.ServerOption) string {
	t.Helper()
	ln, err := h.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(opts...)
	testgrpc.RegisterTestServiceServer(srv, interop.NewTestServer())
	go srv.Serve(ln)
	t.Cleanup(srv.Stop)
	return fmt.Sprintf("%s:%d", at, port)
}

// patience is the time limit of one case, also on a bad wire; a connection that stops forever takes
// longer.
const patience = 20 * time.Second

// suite runs all cases over one connection. The cases end the process when they fail, with a
// message.
func suite(t *testing.T, w *world.World, address string, client world.Host,
	creds credentials.TransportCredentials) {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn,
			error) {
			return client.DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	service, busy := testgrpc.NewTestServiceClient(conn), w.Moving(t, moving.Limit)
	t.Run("cancel_after_begin", func(t *testing.T) { cancelAfterBegin(t, busy, service) })
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(busy, patience)
			defer cancel()
			c.run(ctx, service)
		})
	}
	t.Run("unimplemented", func(t *testing.T) {
		interop.DoUnimplementedMethod(busy, conn)
		interop.DoUnimplementedService(busy, testgrpc.NewUnimplementedServiceClient(conn))
	})
}

// cancelAfterBegin cancels a call that waits for the answer. interop.DoCancelAfterBegin also ends
// the request. The server may then answer before the client has seen the cancellation: the call
// sometimes succeeds, on the kernel's loopback as well, and the process ends.
func cancelAfterBegin(t *testing.T, ctx context.Context, service testgrpc.TestServiceClient) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := service.StreamingInputCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := stream.RecvMsg(new(testgrpc.StreamingInputCallResponse)); status.Code(
		err) != codes.Canceled {
		t.Errorf("%v, want Canceled", err)
	}
}
