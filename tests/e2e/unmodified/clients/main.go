// Command clients has the client of each program, and servers of those that are clients, by plain
// Go on the kernel's sockets: clients NAME ADDRESS.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/coder/websocket"
	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/hashicorp/memberlist"
	"github.com/miekg/dns"
	"github.com/nats-io/nats.go"
	"github.com/pion/turn/v5"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/crypto/ssh"
	"golang.zx2c4.com/wireguard/conn"
)

func main() {
	clients := map[string]func(ctx context.Context, host string) error{
		"http": overHTTP, "dns": overDNS, "caddy": overHTTPVersions, "coredns": askCoreDNS,
		"quic": overHTTP3, "mqtt": overMQTT, "turn": overTURN, "memberlist": joinMembers,
		"redcon": overRedis, "nats": overNATS, "ssh": overSSH, "wireguard": overWireGuard,
		"fasthttp": overFastHTTP, "websocket": overWebsocket, "etcd": overEtcd,
		"webdav": overWebDAV, "prometheus": askPrometheus, "example": greeted,
		"deployed caddy": askDeployedCaddy,

		"redis-server": serveRedis, "mysql-server": serveMySQL, "metrics-server": serveMetrics,
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := clients[os.Args[1]](ctx, os.Args[2]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// blob returns n bytes, the same each time.
func blob(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// sameBytes compares what has come with what was to come.
func sameBytes(what string, got, want []byte) error {
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s: %d bytes, which are others than the %d sent", what, len(got),
			len(want))
	}
	return nil
}

func fetch(c *http.Client, url string, body []byte) ([]byte, error) {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	q, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r, err := c.Do(q)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, r.Status)
	}
	return b, err
}

// overHTTP makes 20 requests of a connection each, one of 3 MB, and posts 3 MB.
func overHTTP(_ context.Context, host string) error {
	const text = "0123456789abcdefghijklmnopqrstuvwxyz"
	at := host // with a port it is that of a tunnel
	if _, _, err := net.SplitHostPort(host); err != nil {
		at = net.JoinHostPort(host, "80")
	}
	url := "http://" + at + "/"
	short := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for i := range 20 {
		got, err := fetch(short, fmt.Sprintf("%s?n=%d", url, i*100), nil)
		want := strings.Repeat(text, 100)[:i*100]
		if err := errors.Join(err, sameBytes("get", got, []byte(want))); err != nil {
			return err
		}
	}
	const size = 3_000_000
	got, err := fetch(http.DefaultClient, fmt.Sprintf("%s?n=%d", url, size), nil)
	want := strings.Repeat(text, size/len(text)+1)[:size]
	if err := errors.Join(err, sameBytes("get", got, []byte(want))); err != nil {
		return err
	}
	sent := blob(size)
	got, err = fetch(http.DefaultClient, url, sent)
	return errors.Join(err, sameBytes("post", got, fmt.Appendf(nil, "%x", sha256.Sum256(sent))))
}

// overDNS asks 20 questions over UDP, 20 over TCP, and one whose answer is truncated over UDP.
func overDNS(ctx context.Context, host string) error {
	at := net.JoinHostPort(host, "53")
	for i := range 40 {
		c := &dns.Client{Net: []string{"udp", "tcp"}[i%2]}
		q := new(dns.Msg).SetQuestion(fmt.Sprintf("q%d.example.", i), dns.TypeA)
		a, err := exchange(ctx, c, q, at)
		if err != nil {
			return err
		}
		if len(a.Answer) != 1 || a.Answer[0].Header().Name != q.Question[0].Name {
			return fmt.Errorf("question %d: %v", i, a)
		}
	}
	q := new(dns.Msg).SetQuestion("long.example.", dns.TypeTXT)
	a, err := exchange(ctx, &dns.Client{}, q, at)
	if err != nil || !a.Truncated {
		return fmt.Errorf("a long answer over UDP: %v, %w", a, err)
	}
	a, err = exchange(ctx, &dns.Client{Net: "tcp"}, q, at)
	if err != nil || len(a.Answer) != 1 || len(a.Answer[0].(*dns.TXT).Txt) != 100 {
		return fmt.Errorf("a long answer over TCP: %v, %w", a, err)
	}
	return nil
}

// exchange asks again where a datagram is lost, as resolvers do.
func exchange(ctx context.Context, c *dns.Client, q *dns.Msg, at string) (*dns.Msg, error) {
	c.Timeout = 5 * time.Second
	if c.Net != "tcp" {
		c.Timeout = time.Second
	}
	var late error
	for range 10 {
		a, _, err := c.ExchangeContext(ctx, q, at)
		if timeout, ok := errors.AsType[net.Error](err); err == nil || !ok || !timeout.Timeout() {
			return a, err
		}
		late = err
	}
	return nil, late
}

func askCoreDNS(ctx context.Context, host string) error {
	for _, network := range []string{"udp", "tcp"} {
		q := new(dns.Msg).SetQuestion("a.example.", dns.TypeA)
		a, err := exchange(ctx, &dns.Client{Net: network}, q, net.JoinHostPort(host, "53"))
		if err != nil {
			return err
		}
		if len(a.Answer) != 1 {
			return fmt.Errorf("%v", a)
		}
		fmt.Println(a.Answer[0].(*dns.A).A)
	}
	return nil
}

var anyCertificate = &tls.Config{InsecureSkipVerify: true, ServerName: "server.test"}

// overHTTPVersions gets one file over HTTP/1, HTTP/2 and HTTP/3.
func overHTTPVersions(_ context.Context, host string) error {
	return getByVersions("https://server.test/file", host)
}

// askDeployedCaddy gets a file of deploy/unmodified's Caddy at any name, and at that of its site by
// each version of HTTP.
func askDeployedCaddy(_ context.Context, host string) error {
	got, err := fetch(http.DefaultClient, "http://"+host+"/file", nil)
	if err := errors.Join(err, sameBytes("http", got, blob(3_000_000))); err != nil {
		return err
	}
	return getByVersions("https://files.example.org/file", host)
}

// getByVersions gets a URL from a host over HTTP/1, HTTP/2 and HTTP/3.
func getByVersions(url, host string) error {
	at := net.JoinHostPort(host, "443")
	insecure := &tls.Config{InsecureSkipVerify: true}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at)
	}
	one := &http.Transport{TLSClientConfig: insecure.Clone(), ForceAttemptHTTP2: false,
		DialContext: dial, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
	two := &http.Transport{TLSClientConfig: insecure.Clone(), ForceAttemptHTTP2: true,
		DialContext: dial}
	three := &http3.Transport{TLSClientConfig: insecure.Clone(), Dial: func(ctx context.Context,
		_ string, t *tls.Config, q *quic.Config) (*quic.Conn, error) {
		return quic.DialAddrEarly(ctx, at, t, q)
	}}
	for version, transport := range map[string]http.RoundTripper{"HTTP/1.1": one, "HTTP/2.0": two,
		"HTTP/3.0": three} {
		c := &http.Client{Transport: transport}
		r, err := c.Get(url)
		if err != nil {
			return fmt.Errorf("%s: %w", version, err)
		}
		got, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err == nil && r.Proto != version {
			err = fmt.Errorf("by %s", r.Proto)
		}
		if err := errors.Join(err, sameBytes(version, got, blob(3_000_000))); err != nil {
			return err
		}
	}
	return nil
}

// overHTTP3 gets 5 MB of quic-go's example server, which makes them by a generator.
func overHTTP3(_ context.Context, host string) error {
	c := &http.Client{Transport: &http3.Transport{TLSClientConfig: anyCertificate.Clone()}}
	const size = 5_000_000
	got, err := fetch(c, fmt.Sprintf("https://%s/%d", net.JoinHostPort(host, "6121"), size), nil)
	want, seed := make([]byte, size), uint64(1)
	for i := range want {
		seed = seed * 48271 % 2147483647
		want[i] = byte(seed)
	}
	if err := errors.Join(err, sameBytes("get", got, want)); err != nil {
		return err
	}
	sent := blob(1_000_000)
	got, err = fetch(c, "https://"+net.JoinHostPort(host, "6121")+"/demo/echo", sent)
	return errors.Join(err, sameBytes("echo", got, sent))
}

// overMQTT subscribes and publishes, over TCP and over a websocket.
func overMQTT(ctx context.Context, host string) error {
	for _, broker := range []string{"tcp://" + net.JoinHostPort(host, "1883"),
		"ws://" + net.JoinHostPort(host, "1882")} {
		c := mqtt.NewClient(mqtt.NewClientOptions().AddBroker(broker).SetClientID("test"))
		if err := waitFor(c.Connect()); err != nil {
			return err
		}
		got := make(chan []byte, 1)
		err := waitFor(c.Subscribe("a/b", 1, func(_ mqtt.Client, m mqtt.Message) {
			got <- m.Payload()
		}))
		if err == nil {
			err = waitFor(c.Publish("a/b", 1, false, blob(500_000)))
		}
		if err != nil {
			return err
		}
		select {
		case b := <-got:
			if err := sameBytes(broker, b, blob(500_000)); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%s: no message: %w", broker, ctx.Err())
		}
		c.Disconnect(100)
	}
	return nil
}

func waitFor(t mqtt.Token) error {
	t.Wait()
	return t.Error()
}

// overTURN sends datagrams by a relay to a socket of its own, which returns them.
func overTURN(_ context.Context, host string) error {
	control, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		return err
	}
	server := net.JoinHostPort(host, "3478")
	c, err := turn.NewClient(&turn.ClientConfig{STUNServerAddr: server, TURNServerAddr: server,
		Conn: control, Username: "user", Password: "pass", Realm: "pion.ly"})
	if err != nil {
		return err
	}
	if err := c.Listen(); err != nil {
		return err
	}
	relay, err := c.Allocate()
	if err != nil {
		return err
	}
	mapped, err := c.SendBindingRequest()
	if err != nil {
		return err
	}
	peer, err := net.ListenPacket("udp4", net.JoinHostPort(mapped.(*net.UDPAddr).IP.String(), "0"))
	if err != nil {
		return err
	}
	if _, err := relay.WriteTo([]byte("hello"), peer.LocalAddr()); err != nil {
		return err
	}
	b := make([]byte, 1500)
	for i := range 50 {
		want := blob(100 + 10*i)
		if i == 0 {
			want = []byte("hello")
		} else if _, err := relay.WriteTo(want, peer.LocalAddr()); err != nil {
			return err
		}
		n, from, err := peer.ReadFrom(b)
		if err != nil || from.String() != relay.LocalAddr().String() {
			return fmt.Errorf("from %v, want the relay %v: %w", from, relay.LocalAddr(), err)
		}
		if _, err := peer.WriteTo(b[:n], from); err != nil {
			return err
		}
		n, _, err = relay.ReadFrom(b)
		if err := errors.Join(err, sameBytes("relayed", b[:n], want)); err != nil {
			return err
		}
	}
	return nil
}

// messages implements the delegate of a member, and takes its messages.
type messages chan []byte

func (messages) NodeMeta(int) []byte             { return nil }
func (messages) GetBroadcasts(_, _ int) [][]byte { return nil }
func (messages) LocalState(bool) []byte          { return nil }
func (messages) MergeRemoteState([]byte, bool)   {}
func (m messages) NotifyMsg(b []byte)            { m <- bytes.Clone(b) }

// joinMembers joins the server, which has to be known by its address, and sends it messages by TCP
// and by UDP.
func joinMembers(ctx context.Context, host string) error {
	config := memberlist.DefaultLANConfig()
	got := make(messages, 1)
	config.Name, config.Delegate, config.LogOutput = "client", got, io.Discard
	list, err := memberlist.Create(config)
	if err != nil {
		return err
	}
	if _, err := list.Join([]string{host}); err != nil {
		return err
	}
	var server *memberlist.Node
	for _, m := range list.Members() {
		if m.Name == "server" {
			server = m
		}
	}
	if server == nil || server.Addr.String() != host {
		return fmt.Errorf("the server is %v, want its address %s", server, host)
	}
	for _, size := range []int{500, 200_000} {
		text := blob(size)
		m := append([]byte("client "), text...)
		if size > 1000 {
			err = list.SendReliable(server, m)
		} else {
			err = list.SendBestEffort(server, m)
		}
		if err != nil {
			return err
		}
		select {
		case b := <-got:
			if err := sameBytes("message", b, text); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("no message of %d bytes: %w", size, ctx.Err())
		}
	}
	return nil
}

func overRedis(ctx context.Context, host string) error {
	c := redis.NewClient(&redis.Options{Addr: net.JoinHostPort(host, "6379"), Protocol: 2,
		DisableIdentity: true})
	for i := range 50 {
		want := string(blob(i * 20_000))
		if err := c.Set(ctx, "key", want, 0).Err(); err != nil {
			return err
		}
		got, err := c.Get(ctx, "key").Result()
		if err := errors.Join(err, sameBytes("value", []byte(got), []byte(want))); err != nil {
			return err
		}
	}
	return nil
}

// greeted asks the server of examples/unmodified.
func greeted(_ context.Context, host string) error {
	got, err := fetch(http.DefaultClient, "http://"+net.JoinHostPort(host, "80")+"/", nil)
	if err != nil || !strings.HasPrefix(string(got), "hello, 10.9.0.") {
		return fmt.Errorf("it says %q: %w", got, err)
	}
	c, err := net.Dial("udp", net.JoinHostPort(host, "7"))
	if err != nil {
		return err
	}
	defer c.Close()
	for i := range 20 {
		want, b := blob(i*70), make([]byte, 2000)
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			return err
		}
		if _, err := c.Write(want); err != nil {
			return err
		}
		n, err := c.Read(b)
		if err := errors.Join(err, sameBytes("echo", b[:n], want)); err != nil {
			return err
		}
	}
	return nil
}

// overEtcd writes, reads, watches and deletes, with values of up to 1 MB.
func overEtcd(ctx context.Context, host string) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{net.JoinHostPort(host, "2379")},
		DialTimeout: time.Minute})
	if err != nil {
		return err
	}
	defer c.Close()
	watched := c.Watch(ctx, "key")
	for i := range 20 {
		want := string(blob(i * 50_000))
		if _, err := c.Put(ctx, "key", want); err != nil {
			return err
		}
		r, err := c.Get(ctx, "key")
		if err != nil || len(r.Kvs) != 1 {
			return fmt.Errorf("get: %v, %w", r, err)
		}
		if err := sameBytes("value", r.Kvs[0].Value, []byte(want)); err != nil {
			return err
		}
		w := <-watched
		if err := w.Err(); err != nil || len(w.Events) != 1 {
			return fmt.Errorf("watch: %d events, %w", len(w.Events), err)
		}
		if err := sameBytes("event", w.Events[0].Kv.Value, []byte(want)); err != nil {
			return err
		}
	}
	if r, err := c.Delete(ctx, "key"); err != nil || r.Deleted != 1 {
		return fmt.Errorf("delete: %v, %w", r, err)
	}
	return nil
}

// overWebDAV puts files and gets them.
func overWebDAV(_ context.Context, host string) error {
	for i := range 10 {
		want := blob(i * 300_000)
		url := "http://" + net.JoinHostPort(host, "8080") + fmt.Sprintf("/file%d", i)
		q, err := http.NewRequest(http.MethodPut, url, bytes.NewReader(want))
		if err != nil {
			return err
		}
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			return err
		}
		r.Body.Close()
		if r.StatusCode != http.StatusCreated {
			return fmt.Errorf("put %s: %s", url, r.Status)
		}
		got, err := fetch(http.DefaultClient, url, nil)
		if err := errors.Join(err, sameBytes("file", got, want)); err != nil {
			return err
		}
	}
	return nil
}

// askPrometheus asks until it has scraped the metric of serveMetrics.
func askPrometheus(ctx context.Context, host string) error {
	url := "http://" + net.JoinHostPort(host, "9090") + "/api/v1/query?query=answer"
	for ctx.Err() == nil {
		got, err := fetch(http.DefaultClient, url, nil)
		if err != nil {
			return err
		}
		if bytes.Contains(got, []byte("\"42\"")) {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("it has scraped nothing")
}

func overNATS(_ context.Context, host string) error {
	c, err := nats.Connect("nats://" + net.JoinHostPort(host, "4222"))
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Subscribe("echo", func(m *nats.Msg) { m.Respond(m.Data) }); err != nil {
		return err
	}
	for i := range 20 {
		want := blob(1 + i*40_000)
		m, err := c.Request("echo", want, time.Minute)
		if err != nil {
			return err
		}
		if err := sameBytes("answer", m.Data, want); err != nil {
			return err
		}
	}
	return nil
}

func overSSH(_ context.Context, host string) error {
	c, err := ssh.Dial("tcp", net.JoinHostPort(host, "2222"), &ssh.ClientConfig{User: "test",
		HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.NewSession()
	if err != nil {
		return err
	}
	sent, got := blob(3_000_000), new(bytes.Buffer)
	s.Stdin, s.Stdout = bytes.NewReader(sent), got
	err = s.Run("cat")
	if _, lost := errors.AsType[*ssh.ExitMissingError](err); lost {
		err = nil // the server sends no status
	}
	return errors.Join(err, sameBytes("cat", got.Bytes(), sent))
}

// overWireGuard sends 20 batches of five packets, which go out as one with UDP_SEGMENT.
func overWireGuard(_ context.Context, host string) error {
	b := conn.NewStdNetBind()
	receive, _, err := b.Open(0)
	if err != nil {
		return err
	}
	to, err := b.ParseEndpoint(net.JoinHostPort(host, "51820"))
	if err != nil {
		return err
	}
	got := make(chan []byte, 1000)
	for _, f := range receive {
		go func() {
			packets, sizes := make([][]byte, b.BatchSize()), make([]int, b.BatchSize())
			from := make([]conn.Endpoint, b.BatchSize())
			for i := range packets {
				packets[i] = make([]byte, 65535)
			}
			for {
				n, err := f(packets, sizes, from)
				if err != nil {
					return
				}
				for i := range n {
					got <- bytes.Clone(packets[i][:sizes[i]])
				}
			}
		}()
	}
	for range 20 {
		var batch [][]byte
		for range 5 {
			batch = append(batch, blob(1000))
		}
		if err := b.Send(batch, to); err != nil {
			return err
		}
		for range batch {
			select {
			case p := <-got:
				if err := sameBytes("packet", p, blob(1000)); err != nil {
					return err
				}
			case <-time.After(20 * time.Second):
				return errors.New("a packet did not come back")
			}
		}
	}
	return nil
}

func overFastHTTP(_ context.Context, host string) error {
	for i := range 20 {
		sent := blob(1 + i*100_000)
		got, err := fetch(http.DefaultClient, "http://"+net.JoinHostPort(host, "8000")+"/", sent)
		if err := errors.Join(err, sameBytes("echo", got, sent)); err != nil {
			return err
		}
	}
	return nil
}

func overWebsocket(ctx context.Context, host string) error {
	c, _, err := websocket.Dial(ctx, "ws://"+net.JoinHostPort(host, "8001")+"/", nil)
	if err != nil {
		return err
	}
	c.SetReadLimit(-1)
	for i := range 20 {
		sent := blob(1 + i*100_000)
		if err := c.Write(ctx, websocket.MessageBinary, sent); err != nil {
			return err
		}
		_, got, err := c.Read(ctx)
		if err := errors.Join(err, sameBytes("echo", got, sent)); err != nil {
			return err
		}
	}
	return c.Close(websocket.StatusNormalClosure, "")
}
