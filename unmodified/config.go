package unmodified

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Prefix begins the names of the environment variables that configure a program.
const Prefix = "RDMA_NETSTACK_"

const (
	configKey = "CONFIG" // names a file with the others
	deviceKey = "DEVICE"
	filterKey = "FILTER" // its errors say what is wrong with the file
	ownerKey  = "PID"    // set by the program itself: whose slice it is

	// SimDevice is the device that is the software ConnectX.
	SimDevice = "sim"
)

// Config says where the sockets of a program go.
type Config struct {
	Stack stack.Config
	// Listen has the only ports that are the slice's to listen on; empty: all.
	Listen []Port
	// KernelPorts are ports that the kernel listens on and dials, and KernelPrefixes addresses that
	// it listens on and dials.
	KernelPorts    []Port
	KernelPrefixes []netip.Prefix
	// NoLocalhost leaves localhost out of listeners on any address, with a MAC address of our own.
	NoLocalhost bool
	// FallBack has the kernel make all sockets if the stack does not open. With Stack.Host only.
	FallBack bool
	LogLevel slog.Level
	Silent   bool
	// Admin is the ADDRESS:PORT of this machine where status and metrics are served; "": on the
	// unix socket only.
	Admin string
	// Sim says what the software ConnectX is connected to.
	Sim SimConfig
}

// SimConfig describes the software ConnectX.
type SimConfig struct {
	Wire   string // tap:NAME or packet:IFNAME
	Faults string // of the wire, such as "drop=2%"
}

// Port names a port, of one transport protocol or of both.
type Port struct {
	Network string // tcp, udp, or "" for both
	Number  uint16
}

func (p Port) matches(network string, number int) bool {
	return int(p.Number) == number && (p.Network == "" || p.Network == network)
}

// setting describes one variable: what it takes, and where that goes.
type setting struct {
	key, want string
	set       func(c *Config, value string) error
}

// settings returns the variables in the order of docs/unmodified.md.
func settings() []setting {
	return []setting{
		{deviceKey, "an RDMA device, a network interface, or sim", func(c *Config, v string) error {
			c.Stack.NIC.Device = v
			return nil
		}},
		{"ADDRESS", "host, auto, or addresses with their prefix length, such as 192.0.2.10/24",
			setAddresses},
		{"GATEWAY", "addresses of routers", func(c *Config, v string) (err error) {
			c.Stack.Gateways, err = parseEach(v, netip.ParseAddr)
			return err
		}},
		{"DNS", "addresses of resolvers", func(c *Config, v string) (err error) {
			c.Stack.DNS, err = parseEach(v, netip.ParseAddr)
			return err
		}},
		{"BACKEND", "auto, rings, packet or xdp", func(c *Config, v string) error {
			return c.Stack.Uplink.Backend.UnmarshalText([]byte(v))
		}},
		{"MAC", "a MAC address, or netdev", func(c *Config, v string) (err error) {
			if c.Stack.NIC.Steering.AllowNetdevMAC = v == "netdev"; v != "netdev" {
				c.Stack.NIC.MAC, err = net.ParseMAC(v)
			}
			return err
		}},
		{"VLAN", "1 to 4094", func(c *Config, v string) error {
			n, err := strconv.ParseUint(v, 10, 16)
			c.Stack.NIC.VLAN = uint16(n)
			return cmp.Or(err, c.Stack.NIC.Validate())
		}},
		{"MTU", "a number of bytes", func(c *Config, v string) (err error) {
			c.Stack.NIC.MTU, err = strconv.Atoi(v)
			return cmp.Or(err, c.Stack.NIC.Validate())
		}},
		{"QUEUES", "a number of receive queues", func(c *Config, v string) (err error) {
			c.Stack.NIC.RxQueues, err = parseNumber(v, 1, 64)
			return err
		}},
		{filterKey, "a file with a list of the packet filter", setFilter},
		{"LISTEN", "ports, such as 80,443/tcp,53", func(c *Config, v string) (err error) {
			c.Listen, err = parseEach(v, parsePort)
			return err
		}},
		{"KERNEL", "ports and prefixes, such as 9090,53/udp,10.0.0.0/8", setKernel},
		{"LOCALHOST", "true or false", func(c *Config, v string) error {
			on, err := strconv.ParseBool(v)
			c.NoLocalhost = !on
			return err
		}},
		{"ON_ERROR", "fail or kernel", func(c *Config, v string) error {
			c.FallBack = v == "kernel"
			return oneOf(v, "fail", "kernel")
		}},
		{"LOG", "off, error, warn, info or debug", func(c *Config, v string) error {
			if c.Silent = v == "off"; c.Silent {
				return nil
			}
			return errors.Join(oneOf(v, "error", "warn", "info", "debug"),
				c.LogLevel.UnmarshalText([]byte(v)))
		}},
		{"ADMIN", "ADDRESS:PORT of this machine, such as 127.0.0.1:9100",
			func(c *Config, v string) error {
				c.Admin = v
				_, port, err := net.SplitHostPort(v)
				if err == nil && port == "" {
					err = errors.New("the port is missing")
				}
				return err
			}},
		{"SIM_WIRE", "tap:NAME or packet:IFNAME", func(c *Config, v string) error {
			c.Sim.Wire = v
			kind, name, _ := strings.Cut(v, ":")
			return errors.Join(oneOf(kind, "tap", "packet"), oneOf(fmt.Sprint(name != ""), "true"))
		}},
		{"FAULTS", "faults of the software ConnectX's wire, such as drop=2%",
			func(c *Config, v string) error {
				c.Sim.Faults = v
				return nil
			}},
	}
}

// ReadConfig reads the configuration from variables NAME=VALUE and from the file that
// RDMA_NETSTACK_CONFIG names, whose lines are KEY=VALUE without the prefix; a variable wins over
// its line. It returns nil without an error if neither is there.
func ReadConfig(environ []string) (*Config, error) {
	values, from := map[string]string{}, map[string]string{}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if key, ok := strings.CutPrefix(name, Prefix); ok {
			values[key], from[key] = value, name
		}
	}
	if path := values[configKey]; path != "" {
		if err := readFile(path, values, from); err != nil {
			return nil, err
		}
	}
	delete(values, configKey)
	delete(values, ownerKey)
	if len(values) == 0 {
		return nil, nil
	}
	c := &Config{LogLevel: slog.LevelInfo}
	if err := c.setAll(values, from); err != nil {
		return nil, err
	}
	return c, c.check()
}

// readFile adds the lines of a file to values, and where each stands to from.
func readFile(path string, values, from map[string]string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%s%s: %w", Prefix, configKey, err)
	}
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		at := fmt.Sprintf("%s, line %d: ", path, i+1)
		key, value, ok := strings.Cut(line, "=")
		key = strings.ToUpper(strings.TrimSpace(key))
		if !ok {
			return fmt.Errorf("%swant KEY=VALUE, such as DEVICE=eth0", at)
		}
		key = strings.TrimPrefix(key, Prefix)
		if _, given := values[key]; !given {
			values[key], from[key] = strings.TrimSpace(value), at+key
		}
	}
	return nil
}

// setAll sets what values has, and refuses keys that do not exist.
func (c *Config) setAll(values, from map[string]string) error {
	var known []string
	for _, s := range settings() {
		known = append(known, s.key)
		v, ok := values[s.key]
		if !ok {
			continue
		}
		if err := s.set(c, v); err != nil && s.key == filterKey {
			return fmt.Errorf("%s=%s: %w", from[s.key], v, err)
		} else if err != nil || v == "" {
			return fmt.Errorf("%s=%s: want %s", from[s.key], v, s.want)
		}
		delete(values, s.key)
	}
	for key := range values {
		return fmt.Errorf("%s is not known: want %s followed by %s, or one of %s", from[key],
			Prefix, configKey, strings.Join(known, ", "))
	}
	return nil
}

// check refuses what cannot be together.
func (c *Config) check() error {
	s := &c.Stack
	switch {
	case s.NIC.Device == "":
		return fmt.Errorf("%s%s is missing: name an RDMA device or a network interface "+
			"(\"rdma-netstack devices\" lists them)", Prefix, deviceKey)
	case !s.Host && s.Dynamic&stack.Auto == 0 && len(s.Addresses) == 0:
		return fmt.Errorf("%sADDRESS is missing: host for the addresses of %s itself, auto, or an "+
			"address of its own such as 192.0.2.10/24", Prefix, s.NIC.Device)
	case s.Host && len(s.Addresses) > 0:
		return fmt.Errorf("%sADDRESS: host takes all addresses of the interface: leave out the "+
			"others", Prefix)
	case c.FallBack && !s.Host:
		return fmt.Errorf("%sON_ERROR=kernel is for %sADDRESS=host: elsewhere the kernel would "+
			"serve on addresses that nobody asked for", Prefix, Prefix)
	case s.Host && (len(s.Gateways) > 0 || s.NIC.VLAN != 0 || s.NIC.MAC != nil ||
		s.NIC.Steering.AllowNetdevMAC):
		return fmt.Errorf("%sADDRESS=host has the interface's router, VLAN and MAC: leave out "+
			"GATEWAY, VLAN and MAC", Prefix)
	case c.Sim != (SimConfig{}) && s.NIC.Device != SimDevice:
		return fmt.Errorf("%sSIM_WIRE and %sFAULTS are for %sDEVICE=sim", Prefix, Prefix, Prefix)
	case s.Host && s.NIC.Device == SimDevice:
		return fmt.Errorf("%sADDRESS=host: the software ConnectX has no addresses of a host: "+
			"give it one of its own", Prefix)
	}
	if s.Name = simName; s.NIC.Device != SimDevice {
		s.Name = netdevName(s.NIC.Device)
	}
	return s.Validate()
}

const simName = "sim0"

// netdevName returns the name that zones have: the interface's, where the device is one.
func netdevName(device string) string {
	if i, err := net.InterfaceByName(device); err == nil {
		return i.Name
	}
	return device
}

func setAddresses(c *Config, value string) error {
	for _, one := range strings.Split(value, ",") {
		switch one = strings.TrimSpace(one); one {
		case "host":
			c.Stack.Host = true
		case "auto":
			c.Stack.Dynamic |= stack.Auto
		default:
			p, err := stack.ParseAddress(one)
			if err != nil {
				return err
			}
			c.Stack.Addresses = append(c.Stack.Addresses, p)
		}
	}
	return nil
}

func setFilter(c *Config, value string) error {
	text, err := os.ReadFile(value)
	if err == nil {
		c.Stack.Filter, err = stack.NewFilter(string(text))
	}
	return err
}

func setKernel(c *Config, value string) error {
	for _, one := range strings.Split(value, ",") {
		one = strings.TrimSpace(one)
		if port, err := parsePort(one); err == nil {
			c.KernelPorts = append(c.KernelPorts, port)
			continue
		}
		p, err := netip.ParsePrefix(one)
		if err != nil {
			a, aerr := netip.ParseAddr(one)
			if aerr != nil {
				return err
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		c.KernelPrefixes = append(c.KernelPrefixes, p.Masked())
	}
	return nil
}

// parsePort reads 53, 53/udp or 443/tcp.
func parsePort(s string) (Port, error) {
	number, network, _ := strings.Cut(s, "/")
	n, err := parseNumber(number, 1, 65535)
	if err == nil {
		err = oneOf(network, "", "tcp", "udp")
	}
	return Port{network, uint16(n)}, err
}

func parseEach[T any](list string, parse func(string) (T, error)) (all []T, err error) {
	for _, one := range strings.Split(list, ",") {
		v, err := parse(strings.TrimSpace(one))
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

func parseNumber(s string, least, most int) (int, error) {
	n, err := strconv.Atoi(s)
	if err == nil && (n < least || n > most) {
		err = fmt.Errorf("%d: want %d to %d", n, least, most)
	}
	return n, err
}

func oneOf(s string, all ...string) error {
	if slices.Contains(all, s) {
		return nil
	}
	return fmt.Errorf("%q: want one of %s", s, strings.Join(all, ", "))
}

// OpenSim connects the software ConnectX for cfg, and returns what closes it. It is nil in programs
// that are built without it.
type OpenSim func(sim SimConfig, mtu int, cfg *dv.NIC, log *slog.Logger) (func() error, error)
