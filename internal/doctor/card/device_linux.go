package card

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
)

// Device completes cfg for the device of this machine that cfg.NIC.Device names, as an RDMA device
// or by its netdev. What it opens is closed by the function it returns.
func Device(cfg Config) (Config, func() error, error) {
	i, err := dv.Describe(cfg.NIC.Device)
	if errors.Is(err, dv.ErrNotFound) {
		return cfg, nil, fmt.Errorf("%w (\"rdma-netstack devices\" lists those there are)", err)
	}
	if err != nil {
		return cfg, nil, err
	}
	all, err := dv.List() // which has the states, too
	if err != nil {
		return cfg, nil, err
	}
	for _, o := range all {
		if o.Name == i.Name && o.Port == i.Port {
			i = o
		}
	}
	return openDevice(cfg, i)
}

func openDevice(cfg Config, i dv.DeviceInfo) (Config, func() error, error) {
	cfg.Environment = environment(i)
	cfg.OpenNode = func() (uverbs.Kernel, error) { return uverbs.OpenNode(i.Node) }
	if i.Netdev == "" {
		return cfg, func() error { return nil }, nil
	}
	side, err := OpenNetdev(i.Netdev)
	if err != nil {
		return cfg, nil, err
	}
	cfg.Netdev, cfg.NetdevMAC = side, i.MAC
	cfg.UnicastList = func() ([]net.HardwareAddr, error) { return UnicastList(i.Netdev) }
	network, err := dv.NetworkOf(cfg.NIC.NIC)
	if err != nil {
		return cfg, nil, errors.Join(err, side.Close())
	}
	for _, a := range network.Addresses {
		if a.Is4() {
			cfg.LinuxAddress = a
			break
		}
	}
	for _, a := range network.Gateways {
		if a.Is4() {
			cfg.Neighbours = append(cfg.Neighbours, a)
		}
	}
	return cfg, side.Close, nil
}

// environment returns what is known of the machine and the card without opening it.
func environment(i dv.DeviceInfo) (facts []doctor.Fact) {
	add := func(name, format string, args ...any) {
		facts = append(facts, doctor.Fact{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		add("kernel", "%s %s %s", unix.ByteSliceToString(u.Sysname[:]),
			unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]))
	}
	add("mlx5_core", "%s", driverVersion())
	add("device", "%s, port %d, hca_type %s, board %s", i.Name, i.Port, i.Type,
		sysText("class/infiniband", i.Name, "board_id"))
	add("firmware", "%s", i.Firmware)
	bus, _ := os.Readlink("/sys/class/infiniband/" + i.Name + "/device")
	add("bus", "%s, id %s:%s", bus[strings.LastIndexByte(bus, '/')+1:],
		sysText("class/infiniband", i.Name, "device/vendor"),
		sysText("class/infiniband", i.Name, "device/device"))
	add("node", "%s, %s", i.Node, fileMode(i.Node))
	add("link", "%s, %s, %s", i.LinkLayer, i.State, i.Rate)
	add("netdev", "%s, MAC %s, MTU %d, operstate %s", cmp.Or(i.Netdev, "none here"), i.MAC, i.MTU,
		cmp.Or(sysText("class/net", i.Netdev, "operstate"), "unknown"))
	if env, err := uverbs.ReadEnvironment(); err == nil {
		add("process", "CAP_NET_RAW %v, CAP_IPC_LOCK %v, locked memory limit %s", env.NetRaw,
			env.IPCLock, limitText(env.Memlock))
	}
	return facts
}

// driverVersion returns that of a driver from outside the kernel; the kernel's own has none.
func driverVersion() string {
	return cmp.Or(sysText("module/mlx5_core/version"), "the kernel's own")
}

func sysText(path ...string) string {
	b, _ := os.ReadFile("/sys/" + strings.Join(path, "/"))
	return strings.TrimSpace(string(b))
}

func fileMode(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return err.Error()
	}
	return st.Mode().String()
}

func limitText(n uint64) string {
	if n == uverbs.MemlockUnlimited {
		return "none"
	}
	return fmt.Sprintf("%d bytes", n)
}
