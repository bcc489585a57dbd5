// Package sim opens the software ConnectX for programs that "rdma-netstack build --sim" builds.
package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/unmodified"
)

// defaultWire says what the port is connected to if nobody says.
const defaultWire = "tap:slice0"

// Open makes a software ConnectX, connects its port as sim says, and makes it the device of cfg.
// done closes it. mtu is 0 for the default.
func Open(sim unmodified.SimConfig, mtu int, cfg *dv.NIC, log *slog.Logger) (done func() error,
	err error) {
	nic, err := simnic.New(simnic.Config{MTU: mtu, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("make the software ConnectX: %w", err)
	}
	if err := connectWire(nic, sim); err != nil {
		return nil, errors.Join(err, nic.Close())
	}
	cfg.Model.Kernel, cfg.Rings.DelayDrop = kernel.Opener(nic), true
	cfg.Model.Facts = dv.PortFacts{Name: nic.Config().Name, MAC: nic.MAC(), MTU: nic.MTU()}
	return nic.Close, nil
}

// connectWire opens the wire, and sets the interface of a TAP wire up.
func connectWire(nic *simnic.NIC, sim unmodified.SimConfig) error {
	spec := sim.Wire
	if spec == "" {
		spec = defaultWire
	}
	kind, name, _ := strings.Cut(spec, ":")
	w, err := openWire(kind, name)
	if err != nil {
		return err
	}
	if kind == "tap" {
		err = lab.Up(name, lab.Setup{MTU: nic.MTU()})
	}
	var faults wire.FaultConfig
	if err == nil && sim.Faults != "" {
		if err = faults.UnmarshalText([]byte(sim.Faults)); err == nil {
			w = wire.WithFaults(w, faults)
		}
	}
	if err == nil {
		err = nic.ConnectWire(w)
	}
	if err != nil {
		return errors.Join(err, w.Close())
	}
	return nil
}

func openWire(kind, name string) (wire.Wire, error) {
	if kind == "tap" {
		w, err := wire.OpenTAP(name)
		if err != nil {
			return nil, fmt.Errorf("open the TAP interface %s: %w", name, err)
		}
		return w, nil
	}
	w, err := wire.OpenPacket(name)
	if err != nil {
		return nil, fmt.Errorf("open the interface %s: %w", name, err)
	}
	return w, nil
}
