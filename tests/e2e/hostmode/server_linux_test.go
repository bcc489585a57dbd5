package hostmode

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// serverEnv names the netdev in the environment of a process that is a server, and backendEnv what
// its frames come by where that is not rings: packet or xdp. Default: packet.
const (
	serverEnv  = "HOSTMODE_SERVER"
	backendEnv = "HOSTMODE_BACKEND"
)

// TestMain is the server's main function in such a process: all threads of a server are in one
// namespace, as those of a real one are.
func TestMain(m *testing.M) {
	if netdev := os.Getenv(serverEnv); netdev != "" {
		if err := serve(netdev); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve opens a stack on the netdev's addresses and does what each line of standard input says. It
// answers each with one line.
func serve(netdev string) error {
	cfg := stack.Config{Host: true, NIC: dv.NIC{Device: netdev},
		TCP:    stack.TCPOptions{Backlog: 16384},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	var own *card
	if taken, rings := os.LookupEnv(ringsEnv); rings {
		var err error
		if own, err = openCard(&cfg, taken); err != nil {
			return err
		}
		defer own.close()
	} else if words := os.Getenv(backendEnv); words != "" {
		if err := cfg.Uplink.Backend.UnmarshalText([]byte(words)); err != nil {
			return err
		}
	}
	began := time.Now()
	st, err := stack.Open(context.Background(), cfg)
	if err != nil {
		return err
	}
	fmt.Println("open", time.Since(began))
	in, other := bufio.NewScanner(os.Stdin), (*stack.Stack)(nil)
	for in.Scan() {
		words := strings.Fields(in.Text())
		answer, err := own.command(st, words)
		switch {
		case err != nil || answer != "":
		case words[0] == "own":
			if other, err = openOwn(cfg, own, words[1]); err == nil {
				answer = "open"
				defer other.Close()
			}
		case words[0] == "ownrates":
			answer, err = serveRates(other, words[1])
		default:
			answer, err = command(st, words)
		}
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		fmt.Println(answer)
	}
	return st.Close()
}

// listening are the server's listeners.
var listening []net.Listener

func closeListeners() (err error) {
	for _, ln := range listening {
		err = errors.Join(err, ln.Close())
	}
	listening = nil
	return err
}

func command(st *stack.Stack, words []string) (string, error) {
	switch words[0] {
	case "tcp":
		ln, err := st.Listen("tcp", words[1])
		if err != nil {
			return "", err
		}
		listening = append(listening, ln)
		go acceptAll(ln)
		return "listening on " + ln.Addr().String(), nil
	case "paced": // an address, bytes per second, and PREFIX=bytes for some clients
		return listenPaced(st, words[1], words[2], words[3:])
	case "pacedudp": // peers
		return sendPaced(st, words[1:])
	case "close":
		return "closed", closeListeners()
	case "many": // an address and how many listeners
		n, err := strconv.Atoi(words[2])
		if err != nil {
			return "", err
		}
		return listenMany(st, words[1], n)
	case "mac": // now, and how often it has changed
		return fmt.Sprint(st.HardwareAddr(), " ", st.Stats().HardwareAddrChanges), nil
	case "netdev":
		stats, _ := st.HostStats()
		return stats.Netdev, nil
	case "timewait": // a time for how long connections are in that state
		d, err := time.ParseDuration(words[1])
		option := tcpip.TCPTimeWaitTimeoutOption(d)
		if terr := st.Netstack().SetTransportProtocolOption(header.TCPProtocolNumber,
			&option); terr != nil {
			err = errors.New(terr.String())
		}
		return "set", err
	case "rates":
		return serveRates(st, words[1])
	case "udp":
		pc, err := st.ListenPacket("udp", words[1])
		if err != nil {
			return "", err
		}
		go echoDatagrams(pc)
		return "listening on " + pc.LocalAddr().String(), nil
	case "dial":
		n, err := strconv.Atoi(words[2])
		if err != nil {
			return "", err
		}
		return dialMany(st, words[1], n)
	case "dialfrom": // a port, and to where
		return dialFrom(st, words[1], words[2])
	case "ask":
		return question(st, words[1])
	case "resets": // of the stack, not of the kernel
		return strconv.FormatUint(st.Netstack().Stats().TCP.ResetsSent.Value(), 10), nil
	case "sockets":
		b, err := json.Marshal(st.Sockets())
		return string(b), err
	case "xdp":
		port := st.PacketPort()
		return strconv.FormatBool(port != nil && port.Stats().XDP != nil), nil
	case "backend":
		return st.LinkStatus().Backend.String(), nil
	case "mtu": // in use, of the rings' netdev, and what the link reporter has to say of it
		notice := "-"
		for _, h := range st.Health() {
			if h.Notice != nil {
				notice = h.Reporter + ": " + h.Notice.Error()
			}
		}
		return fmt.Sprint(st.MTU(), " ", st.NetdevMTU(), " ", notice), nil
	case "stats":
		s, _ := st.HostStats()
		b, err := json.Marshal(s)
		return string(b), err
	}
	return "", errors.New("what?")
}

// listenMany opens n listeners on ports from firstOfMany on, and lists the sockets. It answers how
// many are listed, and how long both have taken.
func listenMany(st *stack.Stack, addr string, n int) (string, error) {
	began := time.Now()
	for port := range n {
		ln, err := st.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(firstOfMany+port)))
		if err != nil {
			return "", err
		}
		listening = append(listening, ln)
		go acceptAll(ln)
	}
	opened := time.Now()
	return fmt.Sprint(len(st.Sockets()), " listed in ", time.Since(opened), ", opened in ",
		opened.Sub(began)), nil
}

// owner says whose a connection is.
func owner(c net.Conn) string {
	if _, ok := c.(*stack.TCPConn); ok {
		return "stack"
	}
	return "kernel"
}

func acceptAll(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if c.LocalAddr().(*net.TCPAddr).Port == bulkPort {
				c.Write(bytes.Repeat(pattern, bulkSize/len(pattern)))
				return
			}
			fmt.Fprintf(c, "%s %s\n", owner(c), c.RemoteAddr())
			io.Copy(c, c)
		}()
	}
}

func echoDatagrams(pc net.PacketConn) {
	b := make([]byte, 65536)
	for {
		n, from, err := pc.ReadFrom(b)
		if err != nil {
			return
		}
		pc.WriteTo(b[:n], from)
	}
}

// dialMany makes n connections to echo servers, 64 at a time, and says whose they were.
func dialMany(st *stack.Stack, to string, n int) (string, error) {
	owners := map[string]int{}
	var mu sync.Mutex
	err := each(n, 64, func(i int) error {
		c, err := st.DialTimeout("tcp", to, time.Minute)
		if err != nil {
			return err
		}
		mu.Lock()
		owners[owner(c)]++
		mu.Unlock()
		return echo(c, payload(i, 20000))
	})
	return fmt.Sprintf("dialled: stack %d, kernel %d", owners["stack"], owners["kernel"]), err
}

// dialFrom connects from a port to an echo server, and closes the connection first.
func dialFrom(st *stack.Stack, port, to string) (string, error) {
	from, err := net.ResolveTCPAddr("tcp", ":"+port)
	if err != nil {
		return "", err
	}
	d := st.Dialer()
	d.LocalAddr, d.Timeout = from, time.Minute
	c, err := d.DialContext(context.Background(), "tcp", to)
	if err != nil {
		return "", err
	}
	return "from " + c.LocalAddr().String(), echo(c, payload(1, 20000))
}

// question sends a datagram to an echo server from an unconnected socket.
func question(st *stack.Stack, to string) (string, error) {
	pc, err := st.ListenPacket("udp", ":0")
	if err != nil {
		return "", err
	}
	defer pc.Close()
	addr, err := net.ResolveUDPAddr("udp", to)
	if err != nil {
		return "", err
	}
	b := make([]byte, 100)
	for range 5 {
		if _, err := pc.WriteTo([]byte("question"), addr); err != nil {
			return "", err
		}
		pc.SetReadDeadline(time.Now().Add(4 * time.Second))
		n, from, err := pc.ReadFrom(b)
		if err == nil {
			return fmt.Sprintf("%s from %s", b[:n], from), nil
		}
	}
	return "", errors.New("no answer")
}
