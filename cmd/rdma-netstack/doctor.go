package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/card"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/host"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/saved"
	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/xdp"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/diagnose"
)

func doctorCommand(out streams) *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{Use: "doctor", Args: noWords,
		Short: "find what is wrong with this machine; test a card",
		Long: `Without --first-contact: looks for what keeps a server from working well on a card, and prints one
line for each with what to do: kernel, modules, node, capabilities, limits, cgroup, firmware, RoCE,
PCIe, NUMA, interrupts, netdev, MTU, pause frames, rings, e-switch. Reads only.

With --backend xdp: looks at whether an interface can be served through AF_XDP.

With --save: writes what is looked at, and what ethtool, lspci, mlxconfig and devlink print, into a
directory to attach to an issue, without addresses, serial numbers and names of the machine. With
--from: looks at such a directory.

With --first-contact: tests a card that this program may never have run on: opens it, sends and
receives through its rings, makes one send WQE fail on purpose, checks which frames Linux still
receives, and prints a report, with the bytes of WQEs and CQEs, to attach to an issue. It takes less
than 30 s and leaves nothing behind. docs/hardware.md explains the checks.

Exit code: 0 if no check fails, 1 otherwise. Notes are no failures.`,
		Example: `  rdma-netstack doctor
  rdma-netstack doctor --device mlx5_0 --first-contact
  rdma-netstack doctor --save card && rdma-netstack doctor --from card`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd.Flags().Changed); err != nil {
				return err
			}
			return f.examine(cmd.Context(), out)
		}}
	addFlags(cmd, "Flags",
		opt("device", "NAME", &f.device, "RDMA device or its network interface (default the "+
			"first there is); with --first-contact needed, and may be sim", deviceNames),
		opt("queues", "N", &f.queues, "receive queues of the server to be, for what the rdma "+
			"cgroup must allow; auto as for serve"),
		opt("backend", "NAME", &f.backend, "with xdp: look at what keeps an interface from being "+
			"served through AF_XDP, instead of at a card", oneOf("xdp")),
		opt("save", "DIR", &f.save, "write what is looked at to DIR, without addresses and serial "+
			"numbers"),
		opt("from", "DIR", &f.from, "look at what --save has written to DIR"),
		opt("first-contact", "", &f.contact, "test the card"),
		opt("mac", "MAC", macOrNetdev(&f.mac, &f.netdevMAC), "with --first-contact: MAC address "+
			"to use, or netdev for the port's own (default a random one)", netdevWord),
		opt("pull", "", &f.pull, "with --first-contact: ask for the cable to be pulled and put "+
			"back, waiting 20 s for each"),
		opt("json", "", &f.asJSON, "print one JSON object: title, device, facts, and the check "+
			"results with check, state (ok, note, failed, skipped), saw, do, facts; with "+
			"--first-contact record, for programs"))
	return cmd
}

// contactTime bounds the checks of --first-contact; steps of the user add to it.
const contactTime = 28 * time.Second

// doctorFlags holds the flags of doctor.
type doctorFlags struct {
	device                string
	contact, pull, asJSON bool
	mac                   net.HardwareAddr
	netdevMAC             bool // the port's own
	queues                queueCount
	backend               stack.Backend
	save, from            string // directories
}

func (f *doctorFlags) examine(ctx context.Context, out streams) error {
	if f.backend == stack.BackendXDP {
		report, err := f.examineXDP()
		if err != nil {
			return err
		}
		return f.print(report, out, report.Findings)
	}
	if f.save != "" {
		return f.saveTo(ctx, out)
	}
	if !f.contact {
		rx := f.queues.number()
		tx := 1 // as stack.Config has them by default
		if n := runtime.GOMAXPROCS(0); n > 1 {
			tx = max(rx, min(2*n, 8))
		}
		cfg := host.Config{Device: f.device, RxQueues: rx, TxQueues: tx}
		if f.from != "" {
			report, err := saved.Look(f.from, cfg)
			if err != nil {
				return err
			}
			return f.print(&report, out, report.Findings)
		}
		cfg.Locate = portCalled
		report := host.Run(cfg)
		return f.print(&report, out, report.Findings)
	}
	report, err := f.firstContact(ctx, out)
	if err != nil {
		return err
	}
	return f.print(report, out, report.Text)
}

// toolTime bounds each program that --save runs.
const toolTime = 10 * time.Second

// saveTo writes what is looked at to a directory, and says which programs told nothing.
func (f *doctorFlags) saveTo(ctx context.Context, out streams) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("save to %s: the name of the machine, to be taken out: %w", f.save, err)
	}
	left, err := saved.Save(f.save, saved.Machine{
		Host:  host.Config{Device: f.device, Locate: portCalled},
		Hosts: []string{name},
		Run: func(argv ...string) ([]byte, error) {
			ctx, cancel := context.WithTimeout(ctx, toolTime)
			defer cancel()
			return exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
		}})
	for _, line := range left {
		fmt.Fprintf(out.stderr, "left out: %s\n", line)
	}
	if err == nil {
		_, err = fmt.Fprintf(out.stdout, "saved to %s: read it before you send it\n", f.save)
	}
	return err
}

func (f *doctorFlags) check(given func(flag string) bool) error {
	alone := given("first-contact") || given("backend") || given("json") && given("save")
	switch {
	case given("save") && given("from"), (given("save") || given("from")) && alone:
		return usageError{errors.New("--save and --from are for what doctor looks at by itself: " +
			"give one of them, without --first-contact and --backend")}
	case f.backend != stack.BackendAuto && f.backend != stack.BackendXDP:
		return usageError{fmt.Errorf("--backend %s: there are checks for xdp alone", f.backend)}
	case f.backend == stack.BackendXDP && (f.device == "" || f.contact):
		return usageError{errors.New("--backend xdp looks at the interface that --device names: " +
			"add that, and leave out --first-contact")}
	case f.contact && f.device == "":
		return usageError{
			errors.New("--device is missing: an RDMA device, the netdev of one, or sim " +
				"(\"rdma-netstack devices\" lists them)"),
		}
	case f.contact && given("queues"):
		return usageError{errors.New("--queues is not for --first-contact, which uses one queue")}
	case f.contact:
		return nil
	case given("mac") || given("pull"):
		return usageError{errors.New("--mac and --pull are for --first-contact")}
	case f.device == simDevice:
		return usageError{
			errors.New("--device sim is for --first-contact: there is no card to look at")}
	}
	return nil
}

// examineXDP looks at what keeps the interface from being served through AF_XDP.
func (f *doctorFlags) examineXDP() (*doctor.Report, error) {
	found, err := xdp.Examine(xdp.Config{Config: packet.Config{Device: f.device}})
	if err != nil {
		return nil, err
	}
	r := &doctor.Report{Title: "doctor", Device: f.device}
	for _, one := range found {
		result := doctor.Result{Check: one.Check, State: doctor.OK, Saw: one.Note}
		switch {
		case one.Err != nil:
			result.State, result.Saw = doctor.Failed, one.Err.Error()
			result.Do = "else serve --backend packet"
		case one.Note != "":
			result.State, result.Do = doctor.Note, "it is served all the same"
		}
		r.Results = append(r.Results, result)
	}
	return r, nil
}

// print prints the report, and returns an exit code for failed checks.
func (f *doctorFlags) print(r *doctor.Report, out streams, text func(io.Writer) error) error {
	write := text
	if f.asJSON {
		write = r.JSON
	}
	if err := write(out.stdout); err != nil {
		return err
	}
	if r.Count(doctor.Failed) > 0 {
		return exitCode(exitFailed)
	}
	return nil
}

// firstContact runs the checks on the device.
func (f *doctorFlags) firstContact(ctx context.Context, out streams) (r *doctor.Report, err error) {
	log := slog.New(slog.NewTextHandler(out.stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	cfg := card.Config{NIC: dv.Config{Logger: log, NIC: dv.NIC{Device: f.device, MAC: f.mac,
		Steering: dv.Steering{AllowNetdevMAC: f.netdevMAC}}}}
	limit := contactTime
	if f.pull {
		limit += contactTime * 2
		cfg.Ask = func(what string) { fmt.Fprintln(out.stderr, what) }
	}
	var undo cleanup
	defer func() { err = errors.Join(err, undo.close()) }()
	if f.device == simDevice {
		cfg, err = simContact(cfg, &undo)
	} else {
		cfg, err = deviceContact(cfg, &undo)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	report := card.Run(ctx, cfg)
	return &report, nil
}

func deviceContact(cfg card.Config, undo *cleanup) (card.Config, error) {
	cfg, end, err := card.Device(cfg)
	if err == nil {
		undo.add(end)
	}
	return cfg, err
}

// portCalled finds a port by what --device has.
func portCalled(device string) (host.Port, error) {
	i, err := dv.Describe(device)
	return host.Port{RDMA: i.Name, Netdev: i.Netdev, Port: i.Port}, err
}

func reportCommand(out streams) *cobra.Command {
	f := reportFlags{time: 10 * time.Second}
	cmd := &cobra.Command{
		Use: "report", Short: "what is wrong with a running server, and what to do", Args: noWords,
		Long: `Looks at a running server twice, 10 s apart: its counters, health and sockets, its process, and
the card's place in this machine. Prints what is wrong or slow, what costs most first, each with its
evidence, its cause and its cure. docs/runbook.md has a table of all that may be found.

Exit code: 0 if nothing is wrong, 1 if something is, or if the server could not be looked at.`,
		Example: `  rdma-netstack report
  rdma-netstack report --for 1m --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.printReport(cmd.Context(), out)
		}}
	f.lookFlags.addTo(cmd, opt("for", "DURATION", &f.time, "time between the two looks, at most "+
		"10m"))
	return cmd
}

// reportFlags holds those of report.
type reportFlags struct {
	lookFlags
	time    time.Duration
	machine host.Config // where the card and the process are looked for; the zero value: here
}

// judged holds what report prints.
type judged struct {
	PID      int                `json:"pid"`
	Seconds  float64            `json:"seconds"` // between the looks
	Findings []diagnose.Finding `json:"findings"`
}

func (f *reportFlags) printReport(ctx context.Context, out streams) error {
	if f.time <= 0 || f.time > 10*time.Minute {
		return usageError{fmt.Errorf("--for %v: want a time up to 10m", f.time)}
	}
	j, err := f.judge(ctx, func(ctx context.Context) {
		timer := time.NewTimer(f.time)
		defer timer.Stop()
		select {
		case <-ctx.Done(): // what was seen so far is told
		case <-timer.C:
		}
	})
	if err != nil {
		return err
	}
	if err := j.print(out.stdout, f.json); err != nil {
		return err
	}
	if len(j.Findings) > 0 {
		return exitCode(exitFailed)
	}
	return nil
}

// judge looks at the server that the flags mean before and after wait.
func (f *reportFlags) judge(ctx context.Context, wait func(context.Context)) (judged, error) {
	server, err := f.server(ctx)
	if err != nil {
		return judged{}, err
	}
	before, err := snapshotOf(ctx, server, f.machine)
	if err != nil {
		return judged{}, err
	}
	wait(ctx)
	after, err := snapshotOf(context.WithoutCancel(ctx), server, f.machine)
	if err != nil {
		return judged{}, err
	}
	return judged{server.PID, after.Stats.Time.Sub(before.Stats.Time).Seconds(),
		diagnose.Find(before, after)}, nil
}

// snapshotOf reads what there is to know of a server now, and of the machine around it.
func snapshotOf(ctx context.Context, server running.Server,
	machine host.Config) (s diagnose.Snapshot, err error) {
	for path, into := range map[string]any{"/facts": &s.Facts, "/health": &s.Health,
		"/stats": &s.Stats} {
		if err := server.Get(ctx, path, into); err != nil {
			return s, err
		}
	}
	if s.Sockets, err = server.Sockets(ctx); err != nil {
		return s, err
	}
	if machine.Device = cmp.Or(s.Facts.Device, s.Facts.Netdev); machine.Device == "" {
		return s, nil
	}
	if machine.Root == "" {
		machine.Locate = portCalled
	}
	p := host.Locate(machine, server.PID)
	s.Host = diagnose.Host{Card: p.Card, CardCPUs: p.CardCPUs, CPUs: p.CPUs,
		PauseReceived: p.Pause.Received, PauseSent: p.Pause.Sent}
	return s, nil
}

func (j *judged) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(j)
	}
	if len(j.Findings) == 0 {
		_, err := fmt.Fprintf(w, "process %d: nothing is wrong, as far as %.3g s tell\n", j.PID,
			j.Seconds)
		return err
	}
	fmt.Fprintf(w, "process %d: %d findings in %.3g s, what costs most first\n", j.PID,
		len(j.Findings), j.Seconds)
	for _, f := range j.Findings {
		fmt.Fprintf(w, "\n%s (cost %.2g of 100)\n  evidence  %s\n  cause     %s\n  cure      %s\n",
			f.Name, f.Cost, f.Evidence, f.Cause, f.Cure)
	}
	return nil
}
