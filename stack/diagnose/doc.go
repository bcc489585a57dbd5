// Package diagnose says what is wrong with a running stack, or slows it down, in the order of what
// that costs:
//
//	before := diagnose.Take(st)
//	time.Sleep(10 * time.Second)
//	for _, f := range diagnose.Find(before, diagnose.Take(st)) {
//		log.Print(f.Name, ": ", f.Evidence, "; ", f.Cure)
//	}
//
// Find depends on its arguments only. The command rdma-netstack report takes the snapshots of a
// server by its admin socket, with what the machine tells of the card in Snapshot.Host.
package diagnose
