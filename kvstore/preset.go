package kvstore

import (
	"fmt"
	"slices"
	"strings"
)

// Preset is a published model: its layout with BF16 KV in blocks of 16 tokens, and what the recompute model needs.
// Parameter counts are in parameters, not billions.
type Preset struct {
	// Name is what PresetByName takes.
	Name string
	// Layout is valid as it stands. Revision, weights version, hash and salt are the caller's to set.
	Layout Layout
	// ParamsTotal counts all parameters.
	ParamsTotal float64
	// ParamsActive counts the parameters a token uses; less than ParamsTotal for mixtures of experts.
	ParamsActive float64
	// ParamsEmbedding counts the input embedding and the output head, both part of ParamsActive: prefill multiplies
	// by neither (the head only for the last token), so P_mm = ParamsActive − ParamsEmbedding.
	ParamsEmbedding float64
	// QueryHeads is Hq in 4·L·Hq·d·p, the attention FLOPs of the token at position p.
	QueryHeads int
	// AttnHeadDim is d in the same term: the mean of the QK and the V head dimension (DeepSeek-V3: (192+128)/2).
	AttnHeadDim float64
	// Source says where the numbers are from.
	Source string
}

const presetBlockTokens = 16

func gqaPreset(name, model string, layers, queryHeads int, theta string, total, embedding float64, source string) Preset {
	return Preset{
		Name: name,
		Layout: Layout{
			ModelID: model, DType: DTypeBF16, Kind: KindGQA, Layers: layers, KVHeads: 8, HeadDim: 128,
			BlockTokens: presetBlockTokens, PositionScheme: "rope:theta=" + theta, HashAlgorithm: "sha256_cbor",
		},
		ParamsTotal: total, ParamsActive: total, ParamsEmbedding: embedding,
		QueryHeads: queryHeads, AttnHeadDim: 128, Source: source,
	}
}

// Presets returns the known models, smallest first. The result is the caller's own. llama-3.1-70b is the reference.
func Presets() []Preset {
	return []Preset{
		gqaPreset("llama-3.1-8b", "meta-llama/Llama-3.1-8B", 32, 32, "500000", 8_030_261_248, 2*128256*4096,
			"config.json of meta-llama/Llama-3.1-8B"),
		gqaPreset("qwen3-32b", "Qwen/Qwen3-32B", 64, 64, "1000000", 32_762_123_264, 2*151936*5120,
			"config.json of Qwen/Qwen3-32B"),
		gqaPreset("llama-3.1-70b", "meta-llama/Llama-3.1-70B", 80, 64, "500000", 70_553_706_496, 2*128256*8192,
			"config.json of meta-llama/Llama-3.1-70B"),
		gqaPreset("llama-3.1-405b", "meta-llama/Llama-3.1-405B", 126, 128, "500000", 405_853_388_800, 2*128256*16384,
			"config.json of meta-llama/Llama-3.1-405B"),
		{
			Name: "deepseek-v3",
			Layout: Layout{
				ModelID: "deepseek-ai/DeepSeek-V3", DType: DTypeBF16, Kind: KindMLA, Layers: 61, KVHeads: 1, HeadDim: 512 + 64,
				BlockTokens: presetBlockTokens, PositionScheme: "rope:theta=10000,yarn=40", HashAlgorithm: "sha256_cbor",
			},
			ParamsTotal: 671e9, ParamsActive: 37e9, ParamsEmbedding: 2 * 129280 * 7168,
			QueryHeads: 128, AttnHeadDim: (192 + 128) / 2.0,
			Source: "config.json of deepseek-ai/DeepSeek-V3; 671B total and 37B active from arXiv 2412.19437 §1",
		},
	}
}

// PresetByName returns the preset called name, in any case. An unknown name is a *FieldError that lists the names.
func PresetByName(name string) (Preset, error) {
	all := Presets()
	i := slices.IndexFunc(all, func(p Preset) bool { return strings.EqualFold(p.Name, name) })
	if i >= 0 {
		return all[i], nil
	}
	names := make([]string, len(all))
	for j, p := range all {
		names[j] = p.Name
	}
	return Preset{}, &FieldError{
		Field: "model", Value: fmt.Sprintf("%q", clip(name)), Allowed: strings.Join(names, ", "),
		Fix: "use one of these, or give the layout field by field",
	}
}
