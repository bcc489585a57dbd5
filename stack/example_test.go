package stack_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"

	"github.com/miekg/dns"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// An HTTP server on an RDMA device.
func ExampleOpen() {
	st, err := stack.Open(context.Background(), stack.Config{
		NIC:       dv.NIC{Device: "mlx5_0"},
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24")},
		Gateways:  []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	})
	if err != nil {
		log.Fatal(err)
	}
	ln, err := st.Listen("tcp", ":80")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(ln, http.FileServer(http.Dir("/srv/www"))))
}

// twoStacks stands for two machines on one Ethernet.
func twoStacks() (server, client *stack.Stack) {
	a, b := netpair.NewPorts(netpair.Faults{})
	server, err := stack.New(a, stack.Config{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"),
			netip.MustParsePrefix("2001:db8::1/64")},
		Addressing: stack.AddressOptions{DuplicateDetection: -1},
	})
	check(err)
	client, err = stack.New(b, stack.Config{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24"),
			netip.MustParsePrefix("2001:db8::2/64")},
		DNS:        []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Addressing: stack.AddressOptions{DuplicateDetection: -1},
	})
	check(err)
	return server, client
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// The server is net/http's own; so is the client.
func ExampleStack_Listen() {
	server, client := twoStacks()
	defer server.Close()
	defer client.Close()

	ln, err := server.Listen("tcp", ":80")
	check(err)
	go http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "hello %s", host)
	}))

	resp, err := client.HTTPClient().Get("http://192.0.2.1/")
	check(err)
	body, err := io.ReadAll(resp.Body)
	check(err)
	fmt.Println(resp.Status, string(body))
	// Output: 200 OK hello 192.0.2.2
}

// A UDP echo server, and a socket that asks it.
func ExampleStack_ListenPacket() {
	server, client := twoStacks()
	defer server.Close()
	defer client.Close()

	pc, err := server.ListenPacket("udp", ":7")
	check(err)
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			pc.WriteTo(buf[:n], from)
		}
	}()

	conn, err := client.Dial("udp", "192.0.2.1:7")
	check(err)
	fmt.Fprint(conn, "anybody there?")
	buf := make([]byte, 100)
	n, err := conn.Read(buf)
	check(err)
	fmt.Printf("%s\n", buf[:n])
	// Output: anybody there?
}

// A DNS server written with miekg/dns, and a dial that needs it.
func ExampleStack_DialContext() {
	server, client := twoStacks()
	defer server.Close()
	defer client.Close()

	pc, err := server.ListenPacket("udp", ":53")
	check(err)
	go (&dns.Server{PacketConn: pc,
		Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			a := new(dns.Msg).SetReply(q)
			if q.Question[0].Qtype == dns.TypeA {
				rr, _ := dns.NewRR(q.Question[0].Name + " 60 IN A 192.0.2.1")
				a.Answer = append(a.Answer, rr)
			}
			w.WriteMsg(a)
		})}).ActivateAndServe()
	ln, err := server.Listen("tcp", ":smtp")
	check(err)
	go func() {
		c, err := ln.Accept()
		check(err)
		fmt.Fprint(c, "220 mail.example.test ready")
		c.Close()
	}()

	conn, err := client.DialContext(context.Background(), "tcp", "mail.example.test:smtp")
	check(err)
	greeting, err := io.ReadAll(conn)
	check(err)
	fmt.Println(conn.RemoteAddr(), string(greeting))
	// Output: 192.0.2.1:25 220 mail.example.test ready
}
