package main

import "strings"

// quantity is one measured quantity.
type quantity struct {
	Key, Title, Unit string
	Less             bool // lower is better
	Digits           int
	Main             bool // in the chart and the short table
}

// catalogue is all quantities in the order of the table. CPU figures are of the server: "cpu" is
// all of it, "own" excludes the software NIC and its wire, whose work a real NIC does. For
// kernel/tap "own" excludes the process between the TAPs, but includes what the server's kernel
// does in that process for received frames. For kernel/veth the kernel charges that work to the
// client: only "both", which adds the client's CPU, contains it.
func catalogue() []quantity {
	var c quantities
	c.web()
	c.services()
	c.bulk()
	c.rest()
	c.wan()
	return c
}

type quantities []quantity

func (c *quantities) add(key, title, unit string, digits int, less, main bool) {
	*c = append(*c, quantity{key, title, unit, less, digits, main})
}

// costs adds the three kinds of CPU.
func (c *quantities) costs(key, title, unit string) {
	c.add(key+" own", title+": CPU without NIC", unit, 1, true, true)
	c.add(key+" cpu", title+": CPU", unit, 1, true, false)
	c.add(key+" both", title+": CPU, client too", unit, 1, true, false)
}

func (c *quantities) web() {
	add, costs := c.add, c.costs
	add("http", "HTTP keep-alive, 64 conns", "req/s", 0, false, true)
	add("http p50", "HTTP p50", "us", 0, true, false)
	add("http p99", "HTTP p99", "us", 0, true, false)
	add("http p99.9", "HTTP p99.9", "us", 0, true, false)
	add("http errors", "HTTP errors", "", 0, true, false)
	costs("http", "HTTP", "us/req")
	c.packets("http", "HTTP", "req")
	add("mem http", "HTTP keep-alive, 64 conns", "req/s", 0, false, true)
	add("mem http p50", "HTTP p50", "us", 0, true, false)
	add("mem http p99", "HTTP p99", "us", 0, true, false)
	add("mem http own", "HTTP: CPU without NIC", "us/req", 1, true, true)
	add("mem http cpu", "HTTP: CPU", "us/req", 1, true, false)
	add("paced p50", "HTTP at 10,000/s p50", "us", 0, true, false)
	add("paced p99", "HTTP at 10,000/s p99", "us", 0, true, true)
	add("paced p99.9", "HTTP at 10,000/s p99.9", "us", 0, true, false)
	add("paced", "HTTP at 10,000/s, achieved", "req/s", 0, false, false)
	costs("paced", "HTTP at 10,000/s", "us/req")
	add("conns", "new connections", "conn/s", 0, false, true)
	costs("conns", "new connections", "us/conn")
	add("dns", "DNS", "q/s", 0, false, true)
	add("dns lost", "DNS lost queries", "", 0, true, false)
	costs("dns", "DNS", "us/q")
	c.packets("dns", "DNS", "q")
}

// packets adds the packets that cross the client's interface.
func (c *quantities) packets(key, title, unit string) {
	c.add(key+" to", title+": packets to server", "/"+unit, 2, true, false)
	c.add(key+" from", title+": packets from server", "/"+unit, 2, true, false)
}

// services adds whole services.
func (c *quantities) services() {
	for _, q := range []struct{ key, title, unit string }{
		{"tls", "TLS 1.3, HTTP/1.1, 64 conns", "req"},
		{"http2", "HTTP/2, TLS, 8 conns of 8 requests", "req"},
		{"http3", "HTTP/3, 8 conns of 8 requests", "req"},
		{"http3 batched", "HTTP/3 in batches, 8 conns of 8 requests", "req"},
		{"grpc", "gRPC unary, 8 conns of 8 calls", "call"},
		{"fasthttp", "fasthttp, 64 conns", "req"},
		{"proxy", "reverse proxy, 64 conns", "req"},
		{"many", "HTTP on 1,000 connections, 64 busy", "req"},
		{"many udp", "UDP echo on 256 sockets, all busy", "echo"},
	} {
		title := c.service(q.key, q.title, q.unit)
		c.add(q.key+" p50", title+" p50", "us", 0, true, false)
		c.add(q.key+" p99", title+" p99", "us", 0, true, false)
	}
	for _, q := range []struct{ key, title string }{
		{"sfu", "SFU, 200 subscribers, 60,000 RTP packets/s"},
		{"sfu batched", "SFU in batches, 200 subscribers, 60,000 RTP packets/s"},
	} {
		title := c.service(q.key, q.title, "packet")
		c.add(q.key+" lost", title+" lost packets", "", 0, true, false)
	}
	c.service("grpc pull", "gRPC messages of 1 KiB from server, 8 streams", "message")
	for _, q := range []struct{ key, title string }{
		{"tls up", "TLS 1.3 bulk to server"}, {"tls down", "TLS 1.3 bulk from server"},
		{"http3 up", "HTTP/3 bulk to server"}, {"http3 down", "HTTP/3 bulk from server"},
		{"http3 batched up", "HTTP/3 bulk to server, in batches"},
		{"http3 batched down", "HTTP/3 bulk from server, in batches"},
	} {
		c.flow(q.key, q.title)
	}
}

// service adds the rate of a service, its costs and packets, and returns its short title.
func (c *quantities) service(key, title, unit string) string {
	short, _, _ := strings.Cut(title, ", ")
	c.add(key, title, unit+"/s", 0, false, true)
	c.costs(key, short, "us/"+unit)
	c.packets(key, short, unit)
	return short
}

// flow adds a bulk transfer: its rate and costs.
func (c *quantities) flow(key, title string) {
	c.add(key, title, "MB/s", 0, false, true)
	c.add(key+" own", title+": CPU without NIC", "s/GB", 2, true, false)
	c.add(key+" cpu", title+": CPU", "s/GB", 2, true, false)
	c.packets(key, title, "MB")
}

func (c *quantities) bulk() {
	for _, d := range []struct{ key, title string }{
		{"up 1", "bulk to server, 1 flow"}, {"up 8", "bulk to server, 8 flows"},
		{"up 16", "bulk, 16 flows"}, {"up 64", "bulk to server, 64 flows"},
		{"down 1", "bulk from server, 1 flow"}, {"down 8", "bulk from server, 8 flows"},
		{"down 64", "bulk from server, 64 flows"},
	} {
		c.flow(d.key, d.title)
	}
	for _, p := range pieces {
		c.flow("down "+p.key, "bulk from server, "+p.title)
	}
}

// wan adds what is measured over a long cable.
func (c *quantities) wan() {
	c.add("wan up", "bulk to server, 8 flows", "MB/s", 2, false, false)
	c.add("wan down", "bulk from server, 8 flows", "MB/s", 2, false, false)
	c.add("wan http", "HTTP keep-alive, 16 conns", "req/s", 0, false, false)
	c.add("wan http p50", "HTTP p50", "ms", 1, true, false)
	c.add("wan http p99", "HTTP p99", "ms", 1, true, false)
	c.add("wan http p99.9", "HTTP p99.9", "ms", 1, true, false)
}

func (c *quantities) rest() {
	add, costs := c.add, c.costs
	add("udp rx", "UDP 64 B to server", "dgram/s", 0, false, true)
	add("udp rx offered", "UDP 64 B offered", "dgram/s", 0, false, false)
	costs("udp rx", "UDP to server", "us/dgram")
	add("udp tx", "UDP 64 B from server", "dgram/s", 0, false, true)
	add("udp tx got", "UDP 64 B arrived at client", "dgram/s", 0, false, false)
	costs("udp tx", "UDP from server", "us/dgram")
	add("udp segments", "UDP from server, 46 datagrams of 1,400 B a call", "MB/s", 0, false, true)
	add("udp segments got", "of it arrived at client", "MB/s", 0, false, false)
	add("udp segments own", "of it CPU without NIC", "s/GB", 2, true, true)
	add("udp segments cpu", "of it CPU", "s/GB", 2, true, false)
	add("udp segments both", "of it CPU, client too", "s/GB", 2, true, false)
	add("udp echo", "UDP echo, 8 sockets", "echo/s", 0, false, true)
	add("ping", "ping, idle", "us", 0, true, true)
	add("rtt p50", "TCP round trip, idle, p50", "us", 0, true, true)
	add("rtt p99", "TCP round trip, idle, p99", "us", 0, true, false)
	add("busy rtt p50", "TCP round trip at 10,000 req/s, p50", "us", 0, true, false)
	add("busy rtt p99", "TCP round trip at 10,000 req/s, p99", "us", 0, true, false)
	add("idle", "CPU when idle", "% of a core", 2, true, false)
	add("idle conn", "memory per idle HTTP connection: process", "B", 0, true, true)
	add("idle conn heap", "of it Go heap and stacks", "B", 0, true, false)
	add("idle conn kernel", "kernel memory, both ends", "B", 0, true, false)
	add("idle conn of many count", "many idle HTTP connections", "", 0, false, false)
	add("idle conn of many", "memory of each: process", "B", 0, true, false)
	add("idle conn of many heap", "of it Go heap and stacks", "B", 0, true, false)
	add("idle conn of many kernel", "kernel memory of each, both ends", "B", 0, true, false)
	add("idle conn of many rate", "rate of opening them", "conn/s", 0, false, false)
}
