package main

import "github.com/spf13/cobra"

// commands lists the commands in the order of the help, which sorts by name. One file a command.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.newPlan(),
		a.newMigrate(),
		a.newMigrations(),
		a.newPlans(),
		a.newSessions(),
		a.newLinks(),
		a.newStatus(),
		a.newCerts(),
		a.newPolicy(),
		a.newDemo(),
		a.newBench(),
		a.newDoctor(),
		a.newRefengine(),
		a.newVersion(),
	}
}
