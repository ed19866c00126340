package queue_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kvferry/kvferry/bench/queue"
)

// The simulator alone: how long does the mean fetch wait at half load, and where does fetch stop paying?
func Example() {
	res, err := queue.Run(context.Background(), queue.Config{
		Utilizations: []float64{0.5}, Jobs: 100_000, Replications: 5, LinkOff: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	p := res.Points[0]
	fmt.Printf("%s, %s: %.0f ms by law\n", p.Discipline, p.Service, 1e3*p.Wait.MM1)
	fmt.Printf("crossover predicted at %.4f\n", res.Crossover.Predicted)
	// Output:
	// fifo, exponential: 50 ms by law
	// crossover predicted at 0.7255
}
