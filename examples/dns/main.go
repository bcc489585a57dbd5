// Command dns is a DNS server, written with github.com/miekg/dns, on a slice of an RDMA port. It
// answers for the records of a zone file, over UDP and TCP.
//
//	echo 'www.example. 300 IN A 192.0.2.80' > example.zone
//	sudo $(which go) run ./examples/dns -device sim -zone example.zone
//	dig @192.0.2.10 www.example
//
// On a ConnectX: -device mlx5_0 -address ADDRESS/LENGTH. Package apps/dnsd is the complete server.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/miekg/dns"

	"github.com/rdma-netstack/rdma-netstack/examples/internal/device"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

func main() {
	name := flag.String("device", "mlx5_0", device.Help)
	address := flag.String("address", device.Address, "our address and its prefix length")
	zone := flag.String("zone", "example.zone", "file of records")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *address, *zone); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, name, address, zone string) (err error) {
	addr, err := netip.ParsePrefix(address)
	if err != nil {
		return err
	}
	f, err := os.Open(zone)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := load(f)
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
	log.Printf("serving %s on %s", zone, addr.Addr())
	return serve(ctx, st, z)
}

// records are those of a zone by name, in lower case.
type records map[string][]dns.RR

func load(file io.Reader) (records, error) {
	z := records{}
	p := dns.NewZoneParser(file, ".", "")
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		name := dns.CanonicalName(rr.Header().Name)
		z[name] = append(z[name], rr)
	}
	return z, p.Err()
}

// ServeDNS answers one question.
func (z records) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	answer := new(dns.Msg).SetReply(query)
	answer.Authoritative = true
	q := query.Question[0]
	of := z[dns.CanonicalName(q.Name)]
	if of == nil {
		answer.Rcode = dns.RcodeNameError
	}
	for _, rr := range of {
		if rr.Header().Rrtype == q.Qtype {
			answer.Answer = append(answer.Answer, rr)
		}
	}
	if w.RemoteAddr().Network() == "udp" {
		answer.Truncate(dns.MinMsgSize)
	}
	w.WriteMsg(answer) // a client that is gone asks again
}

// serve answers over UDP and TCP until ctx ends or one of the two fails.
func serve(ctx context.Context, st *stack.Stack, h dns.Handler) error {
	pc, err := st.ListenPacket("udp", ":53")
	if err != nil {
		return err
	}
	ln, err := st.Listen("tcp", ":53")
	if err != nil {
		return errors.Join(err, pc.Close())
	}
	ended := make(chan error, 2)
	for _, srv := range []*dns.Server{{PacketConn: pc, Handler: h}, {Listener: ln, Handler: h}} {
		go func() { ended <- srv.ActivateAndServe() }()
	}
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-ended:
		ended <- nil
	}
	err = errors.Join(failed, pc.Close(), ln.Close())
	<-ended // both have returned: of closed sockets, which is no failure
	<-ended
	return err
}
