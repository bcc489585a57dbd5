// Command proxy is an HTTP reverse proxy both of whose sides, clients and backend, are on a slice
// of an RDMA port.
//
//	sudo $(which go) run ./examples/proxy -device sim -backend http://192.0.2.1:8000
//	python3 -m http.server 8000   # the backend, on the other end of the wire
//	curl http://192.0.2.10/
//
// On a ConnectX: -device mlx5_0 -address ADDRESS/LENGTH.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os/signal"
	"syscall"
	"time"

	"github.com/rdma-netstack/rdma-netstack/examples/internal/device"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

func main() {
	name := flag.String("device", "mlx5_0", device.Help)
	address := flag.String("address", device.Address, "our address and its prefix length")
	backend := flag.String("backend", "http://192.0.2.1:8000", "where requests go")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *address, *backend); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, name, address, backend string) (err error) {
	addr, err := netip.ParsePrefix(address)
	if err != nil {
		return err
	}
	to, err := url.Parse(backend)
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
	log.Printf("http://%s/ is %s", addr.Addr(), to)
	return serve(ctx, st, to)
}

// serve passes on requests until ctx ends.
func serve(ctx context.Context, st *stack.Stack, backend *url.URL) error {
	ln, err := st.Listen("tcp", ":80")
	if err != nil {
		return err
	}
	toBackend := st.HTTPTransport() // connections to the backend leave through the slice, too
	defer toBackend.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(backend)
			r.SetXForwarded()
		},
		Transport: toBackend,
	}
	srv := &http.Server{Handler: proxy, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
