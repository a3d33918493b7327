// See needle_case.h. The kinds of task are those of RULER (Hsieh et al. 2024, arXiv 2404.06654) and of the
// multi-needle test; names and numbers are drawn anew for every sample, so no text that a model has learned
// holds them.
#include "src/eval/tasks/needle_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

namespace blockgtq {
namespace {

constexpr std::array<std::string_view, 24> kAdjectives = {
    "amber",  "brass",  "cobalt", "copper",  "crimson", "crystal", "emerald", "granite",
    "indigo", "ivory",  "jade",   "lilac",   "marble",  "mustard", "olive",   "orange",
    "paper",  "purple", "rubber", "scarlet", "silver",  "teal",    "velvet",  "yellow"};
constexpr std::array<std::string_view, 24> kNouns = {
    "airship", "aquarium", "bakery",    "beacon",  "bicycle",   "cactus",    "camera",     "elevator",
    "factory", "glacier",  "harbour",   "igloo",   "jukebox",   "kayak",     "lighthouse", "observatory",
    "pyramid", "robot",    "satellite", "tractor", "submarine", "telescope", "volcano",    "windmill"};
constexpr std::array<std::string_view, 24> kThings = {
    "accordion", "almanac",   "anvil",   "avocado", "banjo",     "barometer", "binoculars", "chisel",
    "compass",   "crowbar",   "dynamo",  "flute",   "gyroscope", "hammock",   "kettle",     "magnet",
    "parachute", "pineapple", "sextant", "snorkel", "stapler",   "thermos",   "trombone",   "walnut"};
constexpr int kAnswers = 4;      // of multivalue, multiquery; keys of multikey
constexpr int kThingsAsked = 3;  // of multi
constexpr int kHops = 4;         // of vartrack, RULER's default

/// `count` different indices below `limit`, in random order.
std::vector<size_t> Draw(size_t count, size_t limit, Xoshiro256& random) {
  std::vector<size_t> drawn;
  while (drawn.size() < count) {
    const size_t next = static_cast<size_t>(random.Next() % limit);
    if (std::find(drawn.begin(), drawn.end(), next) == drawn.end()) drawn.push_back(next);
  }
  return drawn;
}

std::string Key(size_t adjective, size_t noun) {
  return fmt::format("the {} {}", kAdjectives[adjective], kNouns[noun]);
}

/// Keys of which no two share a word.
std::vector<std::string> DrawKeys(size_t count, Xoshiro256& random) {
  const std::vector<size_t> adjectives = Draw(count, kAdjectives.size(), random);
  const std::vector<size_t> nouns = Draw(count, kNouns.size(), random);
  std::vector<std::string> keys;
  for (size_t i = 0; i < count; ++i) keys.push_back(Key(adjectives[i], nouns[i]));
  return keys;
}

/// Different numbers of seven digits: none is part of another.
std::vector<std::string> DrawNumbers(size_t count, Xoshiro256& random) {
  std::vector<std::string> numbers;
  for (size_t drawn : Draw(count, 9'000'000, random)) numbers.push_back(fmt::format("{}", 1'000'000 + drawn));
  return numbers;
}

/// k of n needles, the first at `depth`, the others evenly after it, around the end to the beginning.
double SpreadDepth(double depth, int k, int n) {
  if (k == 0) return depth;
  const double at = depth + static_cast<double>(k) / n;
  return at > 1 ? at - std::floor(at) : at;
}

/// Somewhere: for needles that are not asked for.
double AnyDepth(Xoshiro256& random) { return random.Uniform(); }

std::string NumberSentence(const std::string& key, const std::string& number) {
  return fmt::format("The special number of {} is {}.", key, number);
}

NeedleCase SortedByDepth(NeedleCase made) {
  std::stable_sort(made.needles.begin(), made.needles.end(),
                   [](const Needle& a, const Needle& b) { return a.depth < b.depth; });
  return made;
}

constexpr const char* kNumbersIntro =
    "Special numbers are hidden in the text below. Remember them: you will be asked about them afterwards.";

/// The case of one asked key among others.
NeedleCase AskForOne(const std::vector<std::string>& keys, double depth, Xoshiro256& random) {
  const std::vector<std::string> numbers = DrawNumbers(keys.size(), random);
  NeedleCase made;
  made.intro = kNumbersIntro;
  for (size_t i = 0; i < keys.size(); ++i) {
    made.needles.push_back({NumberSentence(keys[i], numbers[i]), i == 0 ? depth : AnyDepth(random)});
  }
  made.question = fmt::format("What is the special number of {} that the text above states?", keys[0]);
  made.answer_start = fmt::format("The special number of {} is", keys[0]);
  made.expected = {numbers[0]};
  return SortedByDepth(std::move(made));
}

NeedleCase Single(double depth, Xoshiro256& random) { return AskForOne(DrawKeys(1, random), depth, random); }

NeedleCase MultiKey(double depth, Xoshiro256& random) {
  return AskForOne(DrawKeys(kAnswers, random), depth, random);
}

/// Every other key shares a word with the one asked for.
NeedleCase Distractor(double depth, Xoshiro256& random) {
  const std::vector<size_t> adjectives = Draw(3, kAdjectives.size(), random);
  const std::vector<size_t> nouns = Draw(3, kNouns.size(), random);
  return AskForOne({Key(adjectives[0], nouns[0]), Key(adjectives[0], nouns[1]), Key(adjectives[0], nouns[2]),
                    Key(adjectives[1], nouns[0]), Key(adjectives[2], nouns[0])},
                   depth, random);
}

NeedleCase Multi(double depth, Xoshiro256& random) {
  const std::string place = DrawKeys(1, random)[0];
  NeedleCase made;
  made.intro =
      "Advice to travellers is hidden in the text below. Remember it: you will be asked about it "
      "afterwards.";
  for (size_t drawn : Draw(kThingsAsked, kThings.size(), random)) {
    const std::string thing(kThings[drawn]);
    made.needles.push_back(
        {fmt::format("One of the things that a traveller to {} needs is this: {}.", place, thing),
         SpreadDepth(depth, static_cast<int>(made.needles.size()), kThingsAsked)});
    made.expected.push_back(thing);
  }
  made.question =
      fmt::format("What are all the things that a traveller to {} needs, as the text above states?", place);
  made.answer_start = fmt::format("The things that a traveller to {} needs are", place);
  return SortedByDepth(std::move(made));
}

NeedleCase MultiValue(double depth, Xoshiro256& random) {
  const std::string key = DrawKeys(1, random)[0];
  NeedleCase made;
  made.intro = kNumbersIntro;
  made.expected = DrawNumbers(kAnswers, random);
  for (int k = 0; k < kAnswers; ++k) {
    made.needles.push_back(
        {fmt::format("One of the special numbers of {} is {}.", key, made.expected[static_cast<size_t>(k)]),
         SpreadDepth(depth, k, kAnswers)});
  }
  made.question = fmt::format("What are all the special numbers of {} that the text above states?", key);
  made.answer_start = fmt::format("The special numbers of {} are", key);
  return SortedByDepth(std::move(made));
}

NeedleCase MultiQuery(double depth, Xoshiro256& random) {
  const std::vector<std::string> keys = DrawKeys(kAnswers, random);
  NeedleCase made;
  made.intro = kNumbersIntro;
  made.expected = DrawNumbers(kAnswers, random);
  std::string list;
  for (size_t k = 0; k < keys.size(); ++k) {
    made.needles.push_back(
        {NumberSentence(keys[k], made.expected[k]), SpreadDepth(depth, static_cast<int>(k), kAnswers)});
    list += (k == 0 ? "" : k + 1 == keys.size() ? " and " : ", ") + keys[k];
  }
  made.question = fmt::format("What are the special numbers of {} that the text above states?", list);
  made.answer_start = fmt::format("The special numbers of {} are", list);
  return SortedByDepth(std::move(made));
}

/// RULER's variable tracking: a chain of assignments in the order of the text; every name has the value.
NeedleCase VariableTracking(double depth, Xoshiro256& random) {
  std::vector<std::string> names;
  while (names.size() < kHops + 1) {
    std::string name;
    for (int i = 0; i < 5; ++i) name += static_cast<char>('A' + random.Next() % 26);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  const std::string value = fmt::format("{}", 10'000 + random.Next() % 90'000);
  std::vector<double> depths;
  for (int k = 0; k <= kHops; ++k) depths.push_back(SpreadDepth(depth, k, kHops + 1));
  std::sort(depths.begin(), depths.end());
  NeedleCase made;
  made.intro =
      "Assignments of variables are hidden in the text below. Follow them: you will be asked which "
      "variables have a value.";
  for (size_t k = 0; k < names.size(); ++k) {
    made.needles.push_back({k == 0 ? fmt::format("VAR {} = {}.", names[k], value)
                                   : fmt::format("VAR {} = VAR {}.", names[k], names[k - 1]),
                            depths[k]});
  }
  made.question = fmt::format(
      "Which variables are assigned the value {} in the text above, directly or "
      "through other variables?",
      value);
  made.answer_start = fmt::format("The {} variables that are assigned the value {} are", kHops + 1, value);
  made.expected = names;
  return made;
}

constexpr std::array<NeedleTask, 7> kTasks = {{
    {"single", "one number", 32, Single},
    {"distractor", "one number among four whose keys share a word with its own", 32, Distractor},
    {"multi", "three things, each in a sentence of its own", 64, Multi},
    {"multikey", "one number among four of other keys", 32, MultiKey},
    {"multivalue", "all four numbers of one key", 128, MultiValue},
    {"multiquery", "the numbers of four keys", 128, MultiQuery},
    {"vartrack", "all five variables of a chain of assignments (RULER)", 64, VariableTracking},
}};

char Lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

}  // namespace

std::span<const NeedleTask> NeedleTasks() { return kTasks; }

const NeedleTask* FindNeedleTask(std::string_view name) {
  for (const NeedleTask& task : kTasks) {
    if (task.name == name) return &task;
  }
  return nullptr;
}

double ShareFound(std::span<const std::string> expected, std::string_view answer) {
  const auto same = [](char a, char b) { return Lower(a) == Lower(b); };
  const auto stands = [&](const std::string& text) {
    return std::search(answer.begin(), answer.end(), text.begin(), text.end(), same) != answer.end();
  };
  return static_cast<double>(std::count_if(expected.begin(), expected.end(), stands)) /
         static_cast<double>(expected.size());
}

}  // namespace blockgtq
