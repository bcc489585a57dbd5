// Command https serves files over HTTPS and HTTP/2 on a slice of an RDMA port. SIGINT or SIGTERM
// lets requests under way finish.
//
//	go run $(go env GOROOT)/src/crypto/tls/generate_cert.go --host 192.0.2.10
//	sudo $(which go) run ./examples/https -device sim
//	curl --insecure https://192.0.2.10/
//
// On a ConnectX: -device mlx5_0 -address ADDRESS/LENGTH.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os/signal"
	"syscall"
	"time"

	"github.com/rdma-netstack/rdma-netstack/examples/internal/device"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

func main() {
	name := flag.String("device", "mlx5_0", device.Help)
	address := flag.String("address", device.Address, "our address and its prefix length")
	cert := flag.String("cert", "cert.pem", "certificate")
	key := flag.String("key", "key.pem", "private key")
	root := flag.String("root", ".", "directory to serve")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *address, *cert, *key, *root); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, name, address, cert, key, root string) (err error) {
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
	ln, err := st.Listen("tcp", ":443")
	if err != nil {
		return errors.Join(err, st.Close())
	}
	log.Printf("serving %s on https://%s/", root, addr.Addr())
	return errors.Join(serve(ctx, ln, http.FileServer(http.Dir(root)), cert, key), flush(st))
}

// shutdownTime is how long requests under way have, and then what was written to deliver it.
const shutdownTime = 5 * time.Second

// serve answers until ctx ends, and then finishes what is under way.
func serve(ctx context.Context, ln net.Listener, h http.Handler, cert, key string) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		stopped <- srv.Shutdown(ctx)
	})
	err := srv.ServeTLS(ln, cert, key)
	if stop() { // not told to stop: the listener failed
		return err
	}
	return <-stopped
}

// flush closes the stack once its peers have what was written. Closing a socket of the kernel
// leaves that to the kernel; this stack ends with the process.
func flush(st *stack.Stack) error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	return st.Shutdown(ctx)
}
