// blockgtq inspect: a model's metadata, or a plan's widths (the fingerprint of its allocation).
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "apps/cli/command.h"
#include "apps/cli/options.h"
#include "src/engine/loaded_model.h"
#include "src/eval/plan_picture.h"
#include "src/formats/plan_file.h"
#include "src/formats/safetensors.h"

namespace blockgtq::cli {
namespace {

/// Of a value's alternatives, GgufValue's and ModelValue's.
struct Text {
  std::string operator()(int64_t v) const { return fmt::format("{}", v); }
  std::string operator()(double v) const { return fmt::format("{:g}", v); }
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(const std::string& v) const { return (*this)(std::string_view(v)); }
  std::string operator()(std::string_view v) const {
    constexpr size_t kShown = 80;
    std::string text(v.substr(0, kShown));
    for (char& c : text)
      c = static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;  // no terminal codes
    return v.size() > kShown ? text + "..." : text;
  }
  template <typename T>
  std::string operator()(const std::vector<T>& v) const {
    return fmt::format("[{} values]", v.size());
  }
  std::string operator()(const GgufArray& v) const { return std::visit(*this, v.values); }
};

template <typename Value>
std::string ValueText(const Value& value) {
  return std::visit(Text{}, value);
}

class InspectCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("FILE", path_, "model (GGUF, safetensors or a folder), plan or moments")->required();
    app.add_option("--plot", plot_, "draw a plan's widths as an SVG picture")->type_name("FILE.svg");
    app.add_option("--plan", plan_, "with a file of moments: the plan whose drift is shown")
        ->check(NotEmpty());
    json_.Add(app);
  }

  Status Run() override {
    NoteInput(path_);
    std::error_code ignored;
    std::string magic(4, '\0');
    if (std::filesystem::is_regular_file(path_, ignored))
      std::ifstream(path_, std::ios::binary).read(magic.data(), 4);
    if (magic == "GGUF" || std::filesystem::is_directory(path_, ignored))
      return Inspect(&InspectCommand::InspectModel);
    // A safetensors file is a plan unless it says otherwise.
    const auto file = SafetensorsFile::Open(path_);
    if (!file.ok()) return InspectPlan();  // which says what is wrong
    const auto& metadata = (*file)->metadata();
    const auto format = metadata.find("format");
    if (format != metadata.end() && format->second == kMomentsFormat) return InspectMoments();
    const bool is_plan = metadata.contains("bytes_per_token_per_head");
    return Inspect(is_plan ? &InspectCommand::InspectPlan : &InspectCommand::InspectModel);
  }

 private:
  /// What is no file of moments.
  Status Inspect(Status (InspectCommand::*inspect)()) {
    if (plan_.empty()) return (this->*inspect)();
    return {ErrorCode::kInvalidArgument, "--plan: " + path_ + " is no file of moments"};
  }

  Status InspectModel() {
    if (!plot_.empty())
      return Status(ErrorCode::kInvalidArgument, "--plot draws a plan; " + path_ + " is a model");
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                          LoadedModel::Open(path_, {}, TokenizerUse::kIfThere));
    const ModelConfig& c = model->config();
    int64_t bytes = 0, parameters = 0;
    std::map<std::string, int> types;
    for (const ModelTensor& tensor : model->source().tensors()) {
      bytes += tensor.bytes;
      parameters += tensor.rows * tensor.cols;
      ++types[GetTensorType(tensor.type()).name];
    }
    const int64_t half = ExactTileBytes(true, c.head_dim, 1, c.latent.rank > 0) * c.kv_heads * c.layers;
    fmt::print("{}: {}, {}, {:.1f} M parameters, {:.1f} MiB\n", path_, model->source().format(),
               c.architecture, static_cast<double>(parameters) / 1e6, static_cast<double>(bytes) / 1048576);
    fmt::print(
        "{} layers, {} heads, {} KV heads, head dimension {}, embedding {}, feed-forward {}, vocabulary {}\n",
        c.layers, c.heads, c.kv_heads, c.head_dim, c.embedding, c.feed_forward, c.vocabulary);
    fmt::print("context {}, RoPE base {:g}, {} pairs, fp16 KV cache {} bytes a token\n", c.context_length,
               c.rope.freq_base, model->fingerprint().rope_pairing, half);
    if (c.window > 0) {
      int windowed = 0;
      for (int l = 0; l < c.layers; ++l) windowed += c.window_of(l) > 0 ? 1 : 0;
      fmt::print("sliding window of {} tokens in {} of {} layers", c.window, windowed, c.layers);
      if (c.window_rope.has_value()) fmt::print(", RoPE base {:g} there", c.window_rope->freq_base);
      fmt::print("\n");
    }
    if (c.latent.rank > 0) {
      fmt::print("the cache holds a latent of {} dims and a rope key of {}, shared by all heads\n",
                 c.latent.rank, c.latent.rope_dims);
    }
    if (c.experts.count > 0) {
      fmt::print("{} experts of feed-forward {}, {} a token\n", c.experts.count, c.experts.feed_forward,
                 c.experts.used);
    }
    std::string type_list;
    for (const auto& [type, count] : types)
      type_list += fmt::format("{}{} {}", type_list.empty() ? "" : ", ", count, type);
    fmt::print("tensors: {}\n\n", type_list);
    nlohmann::json metadata = nlohmann::json::object();
    if (const GgufFile* gguf = model->source().gguf()) {
      for (const auto& [key, value] : gguf->metadata()) metadata[key] = ValueText(value);
    } else {
      const ModelKeys& keys = model->source().keys();
      for (const std::string& key : keys.Names()) metadata[key] = ValueText(*keys.Peek(key));
    }
    for (const auto& [key, value] : metadata.items()) fmt::print("{} = {}\n", key, value.get<std::string>());
    return json_.Write({{"architecture", c.architecture},
                        {"layers", c.layers},
                        {"heads", c.heads},
                        {"kv_heads", c.kv_heads},
                        {"head_dim", c.head_dim},
                        {"latent_dims", c.latent.rank},
                        {"embedding", c.embedding},
                        {"feed_forward", c.feed_forward},
                        {"vocabulary", c.vocabulary},
                        {"context_length", c.context_length},
                        {"rope_freq_base", c.rope.freq_base},
                        {"rotary_dims", c.rope.rotary_dims},
                        {"sliding_window", c.window},
                        {"experts", c.experts.count},
                        {"experts_used", c.experts.used},
                        {"rope_pairing", model->fingerprint().rope_pairing},
                        {"parameters", parameters},
                        {"bytes", bytes},
                        {"tensor_types", types},
                        {"kv_bytes_per_token_fp16", half},
                        {"metadata", metadata}});
  }

  Status InspectMoments() {
    if (!plot_.empty())
      return Status(ErrorCode::kInvalidArgument, "--plot draws a plan; " + path_ + " holds moments");
    BGTQ_ASSIGN_OR_RETURN(const ModelMoments moments, LoadMoments(path_));
    const ModelFingerprint& m = moments.model;
    fmt::print("{}: moments of {} tokens, older ones weighing less: {} count; {} vectors a head\n", path_,
               moments.seen, moments.tokens(),
               moments.heads.front().keys.size() / static_cast<size_t>(m.head_dim));
    fmt::print("for {}: {} layers, {} heads, {} KV heads, head dimension {}\n", m.architecture, m.layers,
               m.heads, m.kv_heads, m.head_dim);
    nlohmann::json json = {
        {"architecture", m.architecture}, {"layers", m.layers},     {"heads", m.heads},
        {"kv_heads", m.kv_heads},         {"head_dim", m.head_dim}, {"moments_tokens", moments.seen}};
    if (plan_.empty()) return json_.Write(json);
    NoteInput(plan_);
    BGTQ_ASSIGN_OR_RETURN(const Plan plan, LoadPlan(plan_));
    BGTQ_ASSIGN_OR_RETURN(const bool by_head, LoadPlanBitsByHead(plan_));
    BGTQ_ASSIGN_OR_RETURN(const Drift drift, MeasureDrift(plan, moments, by_head));
    fmt::print(
        "drift of {} (its logit errors over those of the best plan at its bytes): {}\n\nlayer  drift\n",
        plan_, DriftText(drift));
    for (int l = 0; l < m.layers; ++l) {
      fmt::print("{:5} ", l);
      for (int h = 0; h < m.kv_heads; ++h)
        fmt::print(" {:.3f}", drift.heads[static_cast<size_t>(l) * m.kv_heads + h]);
      fmt::print("\n");
    }
    json["drift"] = DriftJson(drift);
    return json_.Write(json);
  }

  Status InspectPlan() {
    BGTQ_ASSIGN_OR_RETURN(const Plan plan, LoadPlan(path_));
    const ModelFingerprint& m = plan.model;
    fmt::print("{}: recipe {}, K{:g}V{:g}, rotations from seed {}\n", path_, plan.recipe, plan.k_bits,
               plan.v_bits, plan.seed);
    fmt::print("for {}: {} layers, {} heads, {} KV heads, head dimension {}\n", m.architecture, m.layers,
               m.heads, m.kv_heads, m.head_dim);
    fmt::print(
        "calibrated on {} tokens ({}); {:.1f} stored bytes a token a head (K + V), {:.2f}x below "
        "fp16\n",
        plan.calibration.tokens,
        plan.calibration.corpus_hash == kMomentsSource ? "of running moments"
                                                       : "text " + plan.calibration.corpus_hash,
        plan.bytes_per_token_per_head(),
        (plan.has_latents() ? 2.0 : 4.0) * m.head_dim / plan.bytes_per_token_per_head());
    BGTQ_ASSIGN_OR_RETURN(const std::optional<PlanBudget> budget, LoadPlanBudget(path_));
    if (budget.has_value()) {
      const PlanBudget& b = *budget;
      fmt::print("one budget over all heads: {}; for {} sinks and {} recent tokens\n",
                 b.bytes > 0 ? fmt::format("{:g} bytes a token a head", b.bytes)
                             : fmt::format("divergence {:g} nats", b.target_kld),
                 b.sinks, b.recent);
      fmt::print(
          "{} probes at {:g} bits on {} tokens, plans measured on {}, in {:.1f} s; divergence {:.4f} nats "
          "(predicted {:.4f})\n",
          b.probes, b.probe_bits, b.probe_tokens, b.check_tokens, b.probe_seconds, b.measured_kld,
          b.predicted_kld);
    }
    fmt::print("\nlayer head  key groups (bits x dims)              mean   value\n");
    nlohmann::json groups = nlohmann::json::array();
    for (int l = 0; l < m.layers; ++l) {
      for (int h = 0; h < m.kv_heads; ++h) {
        const HeadPlan& head = plan.head(l, h);
        std::string text;
        nlohmann::json list = nlohmann::json::array();
        for (const GroupPlan& g : head.groups) {
          text += fmt::format("{}{}x{}", text.empty() ? "" : " ", g.code_width, g.dims);
          list.push_back({{"width", g.code_width}, {"dims", g.dims}, {"units", g.units}});
        }
        fmt::print(
            "{:5} {:4}  {:<36} {:>4}  {}\n", l, h, text,
            head.mean_units.empty() ? "-" : fmt::format("{}/{}", head.mean_units.size(), m.head_dim / 16),
            head.latent_dims > 0 ? fmt::format("the latent, {} dims", head.latent_dims)
                                 : fmt::format("{}x{}", head.value.code_width, head.value.dims));
        groups.push_back({{"layer", l},
                          {"kv_head", h},
                          {"keys", list},
                          {"block_widths", BlockWidths(head)},
                          {"mean_units", head.mean_units},
                          {"value_width", head.value.code_width},
                          {"latent_dims", head.latent_dims}});
      }
    }
    if (!plot_.empty()) {
      BGTQ_RETURN_IF_ERROR(WriteFile(plot_, PlanPicture(plan)));
      fmt::print("\npicture: {}\n", plot_);
    }
    nlohmann::json json = {{"recipe", plan.recipe},
                           {"k_bits", plan.k_bits},
                           {"v_bits", plan.v_bits},
                           {"seed", plan.seed},
                           {"architecture", m.architecture},
                           {"layers", m.layers},
                           {"heads", m.heads},
                           {"kv_heads", m.kv_heads},
                           {"head_dim", m.head_dim},
                           {"bytes_per_token_per_head", plan.bytes_per_token_per_head()},
                           {"calibration_tokens", plan.calibration.tokens},
                           {"groups", groups}};
    if (budget.has_value()) json["budget"] = BudgetJson(*budget);
    return json_.Write(json);
  }

  std::string path_, plot_, plan_;
  JsonOption json_;
};

}  // namespace

std::unique_ptr<Command> MakeInspect() { return std::make_unique<InspectCommand>(); }

}  // namespace blockgtq::cli
