package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

func devicesCommand(out streams) *cobra.Command {
	var asJSON, verbose bool
	cmd := &cobra.Command{Use: "devices", Short: "list the RDMA devices of this machine",
		Long: `Lists the RDMA devices of this machine, with the names that ibv_devinfo and ibdev2netdev use, each
port of one that has several, and whether each can carry a slice. The software NIC (--device sim)
needs no device.`,
		Args: noWords,
		RunE: func(*cobra.Command, []string) error { return listDevices(asJSON, verbose, out) }}
	addFlags(cmd, "Flags",
		opt("verbose", "", &verbose, "print one block per device: its features and why a "+
			"feature is off; for a device that cannot carry a slice, the reason"),
		opt("json", "", &asJSON, "print an array with one JSON object per device"))
	return cmd
}

// device holds a dv.DeviceInfo as it is printed.
type device struct {
	Name      string `json:"name"`
	Port      int    `json:"port"`
	Netdev    string `json:"netdev"`
	Node      string `json:"node"`
	Type      string `json:"hca_type"`
	Firmware  string `json:"firmware"`
	GUID      string `json:"node_guid"`
	LinkLayer string `json:"link_layer"`
	State     string `json:"state"`
	Rate      string `json:"rate,omitempty"`
	MAC       string `json:"mac"`
	MTU       int    `json:"mtu"`
	Usable    bool   `json:"usable"`
	Why       string `json:"why,omitempty"` // not usable
	Device    string `json:"device"`        // as --device takes it
}

func listDevices(asJSON, verbose bool, out streams) error {
	found, err := dv.List()
	if err != nil && !errors.Is(err, dv.ErrNoRDMA) {
		return err
	}
	all := []device{}
	for _, info := range found {
		all = append(all, shown(info))
	}
	switch {
	case asJSON:
		return json.NewEncoder(out.stdout).Encode(all)
	case len(all) == 0:
		_, err := fmt.Fprintln(out.stdout,
			"no RDMA device on this machine; --device sim needs none")
		return err
	case verbose:
		return printBlocks(out.stdout, all)
	}
	return printTable(out.stdout, all)
}

func shown(i dv.DeviceInfo) device {
	d := device{
		Name:      i.Name,
		Port:      i.Port,
		Device:    i.Device(),
		Netdev:    i.Netdev,
		Node:      i.Node,
		Type:      i.Type,
		Firmware:  i.Firmware,
		GUID:      i.GUID,
		LinkLayer: i.LinkLayer,
		State:     i.State,
		Rate:      i.Rate,
		MAC:       i.MAC.String(),
		MTU:       i.MTU,
		Usable:    i.Usable(),
	}
	if i.Why != nil {
		d.Why = i.Why.Error()
	}
	return d
}

func printTable(w io.Writer, all []device) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DEVICE\tNETDEV\tTYPE\tFIRMWARE\tLINK\tSTATE\tUSABLE")
	for _, d := range all {
		usable := "yes"
		if !d.Usable {
			usable = "no: " + d.Why
		}
		fmt.Fprintln(
			t,
			strings.Join(
				[]string{d.Device, dash(d.Netdev), dash(d.Type), dash(d.Firmware),
					d.LinkLayer, d.State, usable},
				"\t",
			),
		)
	}
	return t.Flush()
}

func printBlocks(w io.Writer, all []device) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, d := range all {
		fmt.Fprintf(t, "%s\n", d.Device)
		for _, row := range [][2]string{
			{"port", number(d.Port)}, {"netdev", d.Netdev}, {"node", d.Node}, {"hca_type", d.Type},
			{"fw_ver", d.Firmware}, {"node_guid", d.GUID},
			{"link_layer", d.LinkLayer}, {"state", d.State}, {"rate", d.Rate},
			{"mac", d.MAC}, {"mtu", number(d.MTU)},
			{"usable", map[bool]string{true: "yes", false: "no"}[d.Usable]}, {"why", d.Why},
		} {
			if row[1] != "" {
				fmt.Fprintf(t, "\t%s\t%s\n", row[0], row[1])
			}
		}
		printFeatures(t, d)
	}
	return t.Flush()
}

// printFeatures prints the features of the device that would be used.
func printFeatures(w io.Writer, d device) {
	if !d.Usable {
		return
	}
	features, err := dv.Probe(dv.Config{NIC: dv.NIC{Device: d.Device}})
	if err != nil {
		fmt.Fprintf(w, "\tfeatures\tnot known: %v\n", err)
	}
	for _, f := range features {
		fmt.Fprintf(w, "\t%s\t%s: %s\n", f.Name, map[bool]string{true: "on", false: "off"}[f.On],
			f.Why)
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// number formats a number, as nothing if it is unknown.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}
