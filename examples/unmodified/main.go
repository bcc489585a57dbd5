// Command unmodified runs an ordinary server, which imports nothing of rdma-netstack: HTTP that
// greets its clients by their addresses, and an echo of UDP datagrams. Two lines put its sockets
// on a slice:
//
//	rdma-netstack build -o server ./examples/unmodified
//	RDMA_NETSTACK_DEVICE=mlx5_0 RDMA_NETSTACK_ADDRESS=192.0.2.10/24 ./server
//
// Without the second line's variables, or built by go build, its sockets are the kernel's.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
)

func main() {
	web := flag.String("http", ":80", "address of the HTTP server")
	echo := flag.String("echo", ":7", "address of the UDP echo")
	flag.Parse()
	log.Fatal(run(*web, *echo))
}

func run(web, echo string) error {
	l, err := net.Listen("tcp", web)
	if err != nil {
		return err
	}
	c, err := net.ListenPacket("udp", echo)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	ended := make(chan error, 2)
	go func() { ended <- http.Serve(l, http.HandlerFunc(greet)) }()
	go func() { ended <- answer(c) }()
	return <-ended
}

func greet(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	fmt.Fprintf(w, "hello, %s\n", host)
}

// answer sends datagrams back until c is closed.
func answer(c net.PacketConn) error {
	for b := make([]byte, 65535); ; {
		n, from, err := c.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err == nil {
			_, err = c.WriteTo(b[:n], from)
		}
		if err != nil {
			log.Print(err)
		}
	}
}
