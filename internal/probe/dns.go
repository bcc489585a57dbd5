package probe

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const dnsTimeout = 2 * time.Second // per try

// Lookup asks server for the records of a name and type ("A", "AAAA", "TXT") over network ("udp" or
// "tcp") and returns their values, sorted.
func (c *Client) Lookup(
	ctx context.Context,
	network string,
	server netip.AddrPort,
	name, kind string,
) ([]string, error) {
	var values []string
	var err error
	if _, ok := c.programs["dig"]; ok {
		values, err = c.digOnce(ctx, network, server, name, kind)
	} else {
		values, err = c.exchangeDNS(ctx, network, server, name, kind)
	}
	if err != nil {
		return nil, fmt.Errorf("look %s %s up at %s over %s: %w", name, kind, server, network, err)
	}
	slices.Sort(values)
	return values, nil
}

func (c *Client) digOnce(
	ctx context.Context,
	network string,
	server netip.AddrPort,
	name, kind string,
) (values []string, err error) {
	transport := "+notcp"
	if network == "tcp" {
		transport = "+tcp"
	}
	var out bytes.Buffer
	err = c.runProgram(
		ctx,
		nil,
		&out,
		"dig",
		"-r",
		"@"+server.Addr().String(),
		"-p",
		fmt.Sprint(server.Port()),
		transport,
		"+short",
		"+tries=5",
		fmt.Sprintf("+time=%d", int(dnsTimeout.Seconds())),
		name,
		kind,
	)
	if err != nil {
		return nil, fmt.Errorf("%w %s", err, firstLine(out.String()))
	}
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, ";") { // what dig has to say about failed tries
			values = append(values, strings.TrimSpace(line))
		}
	}
	return values, nil
}

func (c *Client) exchangeDNS(
	ctx context.Context,
	network string,
	server netip.AddrPort,
	name, kind string,
) ([]string, error) {
	query := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.StringToType[kind])
	query.SetEdns0(1232, false)
	var answer *dns.Msg
	var err error
	for range 5 {
		if answer, err = c.exchangeOnce(ctx, network, server.String(), query); err == nil ||
			ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if answer.Rcode != dns.RcodeSuccess {
		return nil, fmt.Errorf("answer %s", dns.RcodeToString[answer.Rcode])
	}
	var values []string
	for _, rr := range answer.Answer {
		if rr.Header().Rrtype == query.Question[0].Qtype {
			values = append(values, strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
	}
	return values, nil
}

func (c *Client) exchangeOnce(
	ctx context.Context,
	network, server string,
	query *dns.Msg,
) (*dns.Msg, error) {
	conn, err := c.net.DialContext(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := &dns.Client{Net: network, Timeout: dnsTimeout}
	answer, _, err := client.ExchangeWithConnContext(ctx, query, &dns.Conn{Conn: conn})
	return answer, err
}
